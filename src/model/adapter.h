// Files of low-rank adapters (LoRA), as llama.cpp has them: GGUF with general.type "adapter", adapter.type "lora",
// adapter.lora.alpha, general.architecture of the model, and for each matrix NAME.weight that is adapted
//   NAME.weight.lora_a [cols, rank], NAME.weight.lora_b [rank, rows], for experts' [.., experts] behind both;
//   token_embd.weight.lora_a [rank, vocabulary], token_embd.weight.lora_b [rank, model_dim].
// Products get alpha / rank times the adapter's (alpha 0: once). Thread-safety: immutable once opened.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "exec/adapters.h"
#include "model/model.h"
#include "modelfile/gguf.h"
#include "residency/budget.h"

namespace millrace::model {

/// The two halves of one adapted matrix, shapes in GGUF's order with experts as a third dimension (1: none).
struct AdaptedTensor {
  std::string name;  // of the model's tensor
  modelfile::TensorInfo a, b;
  std::int64_t rank = 0, experts = 1;
  bool embedding = false;
};

class AdapterFile {
 public:
  /// Reads the header. Errors: those of Model::open; unsupported (no LoRA adapter, a tensor that is no half of one);
  /// corrupt (a half without the other, ranks that differ), each with the tensor's name.
  static Expected<AdapterFile> open(const std::string& path);
  /// The same from what was opened.
  static Expected<AdapterFile> from(modelfile::Model file);

  /// What load() asks a budget for.
  std::uint64_t memory_bytes() const;
  std::int64_t most_rank() const;
  const std::vector<AdaptedTensor>& tensors() const { return tensors_; }
  const modelfile::Model& file() const { return file_; }
  /// alpha / rank, or 1.
  float factor_of(const AdaptedTensor& tensor) const;

  /// The weights that products with the model's matrices read and that the adapter changes; some may be there twice.
  std::vector<residency::WeightRef> weights(const Model& model) const;
  bool adapts_embedding() const;

  /// Whether every tensor is one of `base`'s, of its shape. Errors: invalid_argument (of another architecture, or of a
  /// model of other shapes, both named).
  Status check(const modelfile::Model& base) const;
  /// check(), and the matrices in memory. Errors: those of check(); unsupported (a tensor that no product of the
  /// model's program reads, or one with a scale beside it, named); out_of_budget, io_error.
  Expected<exec::Adapter> load(const modelfile::Model& base, const Model& model, residency::Budget& budget) const;

 private:
  modelfile::Model file_;
  double alpha_ = 0;
  std::vector<AdaptedTensor> tensors_;
};

}  // namespace millrace::model

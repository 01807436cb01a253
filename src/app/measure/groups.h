// A model's matrices in the groups that get one type together: of each layer its mixer (attention, or what stands in
// its place), what the mixer's values go through, and its feed-forward or experts in two; the embedding; the head. And
// what is written of some of them in other types. Thread-safety: functions without shared state.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "modelfile/gguf.h"
#include "modelfile/imatrix.h"
#include "tensor/dtype.h"

namespace millrace::measure {

struct Group {
  // "blk.3.attention", "blk.3.values" (attn_v, attn_output), "blk.3.ffn", "blk.3.down", "embedding", "head"; else the
  // tensor's own. Values and down are what usual mixtures give more bits.
  std::string name;
  std::vector<const modelfile::TensorInfo*> tensors;  // of the model

  std::int64_t elements() const;
};
/// In the model's order. What stays in float32 (norms, biases, routers) is in none. The groups point into the model.
std::vector<Group> groups_of(const modelfile::Model& model);

/// What a tensor of that type takes in a file, padding and all, with the scale that quantize() may write beside it; and
/// a group, each tensor in modelfile::fitting_dtype().
constexpr std::uint64_t kTensorAlignment = 32;
std::uint64_t file_bytes_as(const modelfile::TensorInfo& tensor, DType dtype);
std::uint64_t bytes_as(const Group& group, DType dtype);

/// How much rounding to `dtype` takes away of what the matrices say: the squares of what is lost over the squares of
/// all weights, the mean of the tensors. Of large tensors as many rows as have a million weights, evenly spread.
/// `importance`: what squares count; null: alike. Errors: io_error, invalid_argument (it is of another model).
Expected<double> rounding_error(const modelfile::Model& model, const Group& group, DType dtype, ThreadPool& pool,
                                const modelfile::ImportanceMatrix* importance = nullptr);

/// Writes the groups, in `dtype`, as a file to lay over the model (modelfile/overlay.h): what modelfile::quantize()
/// makes of them. `importance` as above. Errors: as quantize().
Status write_overlay(const modelfile::Model& model, std::span<const Group* const> groups, DType dtype,
                     const std::string& path, int threads, const std::atomic<bool>* cancel,
                     const modelfile::ImportanceMatrix* importance = nullptr);

}  // namespace millrace::measure

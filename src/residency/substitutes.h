// Substitutes: low-bit copies of the matrices of a model's layers, in a file of their own (`millrace quantize
// --substitute`). Where layers do not stay in fast memory, a drafter walks the whole model with substitutes in their
// place: they stay. What is no matrix (norms, biases, routers) and what became no smaller is the model's own.
//
// The file is a GGUF without what a model needs (modelfile/substitute.h): no tokenizer, no hyperparameters, the
// identity of its model in their place, and tensors of the model's names and shapes. Damage to a substitute's bytes
// makes guesses worse and never an answer, so that they have no checksum. Thread-safety: immutable once open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "residency/unit.h"
#include "tensor/dtype.h"

namespace millrace::residency {

class Substitutes {
 public:
  /// Finds the substitute of each trunk of a layer and of each expert of `units`, which are those of `model`, none of
  /// them moved elsewhere. identity: of the model. Errors: not_found, io_error, corrupt (damaged: what),
  /// invalid_argument (no substitute, or another model's), unsupported (it has nothing for this model's layers); all
  /// name the file.
  static Expected<std::unique_ptr<Substitutes>> open(const std::string& path, const modelfile::Model& model,
                                                     const UnitTable& units, std::string_view identity);

  const std::string& path() const { return path_; }
  /// Of most of its bytes.
  DType dtype() const { return dtype_; }
  /// The same units, and substitutes behind them, aside; cut at `tile_bytes`. file: the number of the substitutes'
  /// file among those that parts name. REQUIRES: the units open() saw; experts may have moved into a pack since.
  UnitTable beside(const UnitTable& units, std::uint64_t tile_bytes, int file) const;

 private:
  Substitutes() = default;
  std::string path_;
  DType dtype_ = DType::f32;
  std::vector<Unit> units_;  // parts in the substitutes' file have a file number of -1
};

/// Whether some units are substitutes; the units without them.
bool has_substitutes(const UnitTable& units);
UnitTable without_substitutes(const UnitTable& units, std::uint64_t tile_bytes);

/// What is exchanged as a whole: a layer's trunk, or all its experts, and the substitutes.
struct Exchange {
  int layer = 0;
  std::vector<std::int32_t> own, substitutes;  // units; as many of both
};
/// Those of a model in the order in which they are to be at home themselves: trunks, of which every token reads all,
/// before experts; any first ones of a kind are spread evenly over the pass.
std::vector<Exchange> exchanges(const UnitTable& units);

/// By unit: the one that a drafter computes with in its place, itself or its substitute. at_home: by unit.
std::vector<std::int32_t> stand_ins(const UnitTable& units, const std::vector<bool>& at_home);

}  // namespace millrace::residency

// How much each column of each matrix matters: the squares of what it is multiplied by, summed up over a text, of a
// mixture by expert. A quantizer that knows them spends its error where little goes in.
// Thread-safety: one thread, which is the engine's.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "exec/input_observer.h"
#include "modelfile/gguf.h"
#include "modelfile/imatrix.h"
#include "residency/unit.h"

namespace millrace::measure {

/// Of one tensor.
struct InputSum {
  std::string name;
  std::int64_t cols = 0, matrices = 1;  // experts, or 1
  std::vector<double> squares;          // [matrices, cols]: of every row that a matrix was multiplied by
  std::vector<std::int64_t> counts;     // [matrices]: those rows
};

/// Gathers them as an engine's observer.
class InputSums final : public exec::InputObserver {
 public:
  /// Takes all its memory: 8 bytes a column of each matrix.
  explicit InputSums(const modelfile::Model& model);

  /// Of the model as the engine has it, which outlives this: before the first pass.
  void bind(const residency::UnitTable& units);
  void saw(std::span<const residency::WeightRef> weights, const exec::SeenInput& input) override;

  /// Those that saw a row, in the model's order.
  std::vector<const InputSum*> seen() const;

 private:
  struct Place {
    std::int32_t sum = -1;  // -1: of no matrix
    std::int32_t matrix = 0;
  };

  std::vector<InputSum> sums_;
  std::map<std::string, std::int32_t, std::less<>> by_name_;
  std::vector<std::vector<Place>> places_;  // by unit and part
};

/// How a run was made, for those who read its file.
struct ImatrixSource {
  std::string text;  // its file's name
  std::int64_t windows = 0, context = 0;
};
/// What modelfile/imatrix.h writes.
modelfile::ImportanceMatrix importance_of(const InputSums& sums, const ImatrixSource& source);

}  // namespace millrace::measure

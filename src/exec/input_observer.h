// Who wants to see what products read, row by row: importance matrices are made of it. The CPU executor's alone; it
// costs a comparison a product where nobody looks.
#pragma once

#include <cstdint>
#include <span>

#include "residency/unit.h"

namespace millrace::exec {

/// Rows that go into products.
struct SeenInput {
  const float* x = nullptr;  // [.., cols], dense
  std::int64_t rows = 0, cols = 0;
  const std::int32_t* index = nullptr;  // row r is row index[r] of x; null: row r
};

class InputObserver {
 public:
  virtual ~InputObserver() = default;
  /// Each of these weights is multiplied by these rows, once: a mixture's experts by the rows that went to them.
  /// Weights that are multiplied by heads (latent attention's) are not shown. Called by the thread of the pass, rows in
  /// the order of the batch, also of a pass that fails later; the rows are valid during the call.
  virtual void saw(std::span<const residency::WeightRef> weights, const SeenInput& input) = 0;
};

}  // namespace millrace::exec

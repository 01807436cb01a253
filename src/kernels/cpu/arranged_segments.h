// What lies at the start of matmul_segments' workspace, whoever multiplies: so that activations which one way of
// multiplying arranged are never taken for another's.
#pragma once

#include <cstdint>

namespace millrace::kernels::segments {

/// What activations lie arranged behind it, and how: each way of arranging them has a number of its own. Compared byte
/// by byte, so that no function here can be linked from code for another instruction set.
struct Arranged {
  std::uint64_t name = 0;  // MatmulArgs::x_name; 0: none that may be used again
  std::int64_t arrangement = 0, rows = 0, cols = 0, first = 0;
};
constexpr std::int64_t kArrangedBytes = 64;

}  // namespace millrace::kernels::segments

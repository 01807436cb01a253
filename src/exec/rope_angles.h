// The angles by which a rotation turns pairs of channels, for every executor alike: in double, then rounded.
// Thread-safety: a pure function.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "exec/program.h"

namespace millrace::exec {

/// Cosine and sine of a pair at a place (Rope::offset behind it), times the rotation's magnitude, to `to`.
inline void put_angle(const Rope& rope, std::int64_t pair, double place, float* to) {
  const double angle = (place + static_cast<double>(rope.offset)) * rope.inv_freq[static_cast<std::size_t>(pair)];
  to[0] = static_cast<float>(std::cos(angle) * rope.magnitude);
  to[1] = static_cast<float>(std::sin(angle) * rope.magnitude);
}

}  // namespace millrace::exec

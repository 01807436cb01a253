// Four floats at a time, for the loops of the encoders: plain GCC/Clang vector types that become SSE2 or NEON.
// Thread-safety: pure functions.
#pragma once

#include <cstring>

namespace millrace {

using F4 = float __attribute__((vector_size(16)));

inline F4 splat(float value) { return F4{value, value, value, value}; }

inline F4 load4(const float* from) {
  F4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void store4(float* to, F4 value) { std::memcpy(to, &value, sizeof value); }

inline float sum4(F4 v) { return (v[0] + v[2]) + (v[1] + v[3]); }

/// The bounds win over a NaN.
inline F4 clamp4(F4 v, F4 low, F4 high) {
  v = v > low ? v : low;
  return v < high ? v : high;
}

/// To the nearest integer, ties to even. REQUIRES: |v| < 2^22, round-to-nearest mode.
inline F4 round4(F4 v) {
  const F4 shift = splat(12582912.0f);  // 1.5 * 2^23: the sum has no bits below one
  return (v + shift) - shift;
}

}  // namespace millrace

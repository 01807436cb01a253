// Floats side by side, for the loops of the encoders: plain GCC/Clang vector types as wide as the instruction set that
// the including file is compiled for. Everything here is of that file alone. Thread-safety: pure functions.
#pragma once

#include <cstring>

namespace millrace {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using Lanes = float __attribute__((vector_size(sizeof(float) * kLanes)));

[[maybe_unused]] inline Lanes splat(float value) { return Lanes{} + value; }

[[maybe_unused]] inline Lanes load_lanes(const float* from) {
  Lanes value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

[[maybe_unused]] inline void store_lanes(float* to, Lanes value) { std::memcpy(to, &value, sizeof value); }

[[maybe_unused]] inline Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }
[[maybe_unused]] inline Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
[[maybe_unused]] inline Lanes magnitude(Lanes v) { return larger(v, -v); }

/// The bounds win over a NaN.
[[maybe_unused]] inline Lanes clamp(Lanes v, Lanes low, Lanes high) { return smaller(larger(v, low), high); }

/// To the nearest integer, ties to even. REQUIRES: |v| < 2^22, round-to-nearest mode.
[[maybe_unused]] inline Lanes round_lanes(Lanes v) {
  const Lanes shift = splat(12582912.0f);  // 1.5 * 2^23: the sum has no bits below one
  return (v + shift) - shift;
}

}  // namespace
}  // namespace millrace

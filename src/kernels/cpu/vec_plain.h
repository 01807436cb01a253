// The plain "vector": one lane, one float. It defines what every other vector type must compute, lane by lane.
//
// A vector type V has kWidth lanes (a power of two, at most 32), kRegisters of them fit the register file, and:
//   load/load_first/store/store_first   unaligned; _first: n lanes (1 <= n < kWidth), the others load as zero
//   load_half..., store_half...         the same from and to float16, rounding to nearest even
//   max(a, b) = a > b ? a : b, min(a, b) = a < b ? a : b   (a NaN on either side gives b)
//   times_power_of_two(x, n)            x * 2^n rounded once; n is an integer and 0.5 < x < 2 (or NaN), |n| < 253
//   sum: the lanes added as a tree: lane l += lane l + kWidth/2, and so on down to lane 0
//
// The anonymous namespace is on purpose: this header is compiled into files of different instruction sets, and code
// with external linkage would be merged by the linker into whichever copy it meets first.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cpu/fused.h"

namespace millrace::kernels {
namespace {

struct Lane {
  using Float = float;
  static constexpr int kWidth = 1;
  static constexpr int kRegisters = 16;

  static Float load(const float* p) { return *p; }
  static Float load_first(const float* p, int) { return *p; }
  static void store(float* p, Float v) { *p = v; }
  static void store_first(float* p, Float v, int) { *p = v; }
  static Float keep_first(Float v, int) { return v; }
  static Float set(float v) { return v; }
  static Float add(Float a, Float b) { return a + b; }
  static Float sub(Float a, Float b) { return a - b; }
  static Float mul(Float a, Float b) { return a * b; }
  static Float div(Float a, Float b) { return a / b; }
  static Float fma(Float a, Float b, Float c) { return fused(a, b, c); }
  static Float max(Float a, Float b) { return a > b ? a : b; }
  static Float min(Float a, Float b) { return a < b ? a : b; }
  static float sum(Float v) { return v; }
  static float max_lane(Float v) { return v; }
  static Float times_power_of_two(Float x, Float n) {  // in two steps, of which the second rounds
    constexpr float kRound = 12582912.0f;              // 1.5 * 2^23: the sum's last bits are the integer
    const std::int32_t power = std::bit_cast<std::int32_t>(n + kRound) - std::bit_cast<std::int32_t>(kRound);
    const std::int32_t first = power >> 1;
    return x * power_of_two(first) * power_of_two(power - first);
  }

 private:
  static Float power_of_two(std::int32_t n) { return std::bit_cast<Float>(static_cast<std::uint32_t>(n + 127) << 23); }
};

}  // namespace
}  // namespace millrace::kernels

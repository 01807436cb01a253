// a * b + c, rounded once. It is the processor's instruction where the file is compiled for one that has it, and
// computed in doubles elsewhere: mingw-w64's fmaf rounds twice in a fifth of random cases, so that no file may call the
// library's.
//
// The anonymous namespace is on purpose: this header is compiled into files of different instruction sets
// (vec_plain.h).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace millrace::kernels {
namespace {

/// The product is exact in a double. The sum is rounded to odd: where it is not exact, its last bit becomes 1,
/// whichever neighbor that is. It has more than two bits more than a float, so that rounding it to a float cannot meet
/// a tie that the exact sum does not have (Boldo and Melquiond, Emulation of a FMA and correctly-rounded sums: proved
/// algorithms using rounding to odd).
[[maybe_unused]] inline float fused_in_doubles(float a, float b, float c) {
  const double product = static_cast<double>(a) * b, addend = c;
  const double sum = product + addend;
  const double of_addend = sum - product;  // Knuth's TwoSum: what the sum's rounding left out
  const double left_out = (product - (sum - of_addend)) + (addend - of_addend);
  auto bits = std::bit_cast<std::uint64_t>(sum);
  const bool exact = left_out == 0 || !std::isfinite(sum);
  if (!exact && (bits & 1) == 0) bits += (left_out > 0) == (sum > 0) ? 1 : -1;
  return static_cast<float>(std::bit_cast<double>(bits));
}

[[maybe_unused]] inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return fused_in_doubles(a, b, c);
#endif
}

}  // namespace
}  // namespace millrace::kernels

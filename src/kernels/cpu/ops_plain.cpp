#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/make_ops.h"
#include "kernels/cpu/ops.h"
#include "tensor/half.h"

namespace millrace::kernels {
namespace {

struct Plain : Lane {
  static Float load_half(const std::uint16_t* p) { return half_to_float(*p); }
  static Float load_half_first(const std::uint16_t* p, int) { return half_to_float(*p); }
  static void store_half(std::uint16_t* p, Float v) { *p = float_to_half(v); }
  static void store_half_first(std::uint16_t* p, Float v, int) { *p = float_to_half(v); }
};

}  // namespace

Table plain_ops() { return make_ops<Plain>(Isa::plain); }

float exp_f32(float x) { return exp_of<Lane>(x); }
float sigmoid_f32(float x) { return over_sigmoid<Lane>(1, x); }

/// max(x, 0) + ln(1 + y), y = e^-|x|: with z = y / (2 + y), at most 1/3, ln(1 + y) is 2 (z + z^3 / 3 + z^5 / 5 + ...).
float softplus_f32(float x) {
  const double y = exp_f32(-std::abs(x)), z = y / (2 + y), square = z * z;
  constexpr int kTerms = 12;  // 9^-12 is nothing to a float
  double sum = 0;
  for (int n = kTerms; n >= 0; --n) sum = sum * square + 1.0 / (2 * n + 1);
  return static_cast<float>((x > 0 ? x : 0) + 2 * z * sum);
}

void top_k(const float* x, std::int64_t n, std::int64_t k, std::int32_t* indices) {
  std::int64_t kept = 0;  // indices[0, kept) are the largest so far, in order
  for (std::int64_t i = 0; i < n; ++i) {
    if (kept == k && !(x[i] > x[indices[k - 1]])) continue;
    std::int64_t place = kept < k ? kept++ : k - 1;
    for (; place > 0 && x[i] > x[indices[place - 1]]; --place) indices[place] = indices[place - 1];
    indices[place] = static_cast<std::int32_t>(i);
  }
}

void largest(const float* x, std::int64_t n, std::int64_t k, float* scratch, std::int32_t* indices) {
  if (k <= 0) return;
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  const auto ranked = [](float value) { return std::isnan(value) ? kLeast : value; };
  std::transform(x, x + n, scratch, ranked);
  std::nth_element(scratch, scratch + (k - 1), scratch + n, std::greater<>());
  const float least = scratch[k - 1];
  std::int64_t equal = k - std::count_if(x, x + n, [&](float value) { return ranked(value) > least; });
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = ranked(x[i]);
    if (value < least || (value == least && equal-- <= 0)) continue;
    *indices++ = static_cast<std::int32_t>(i);
  }
}

}  // namespace millrace::kernels

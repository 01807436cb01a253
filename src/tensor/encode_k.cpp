#include "tensor/encode_k.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensor/half.h"
#include "tensor/lanes.h"

// How the scales are found, for both formats:
//  1. each sub-block alone: try a few step sizes around the one its range suggests; for each, round to levels and solve
//     the least-squares problem for the best scale (and min) given those levels. What remains of the squared error
//     follows from the sums alone, so a try costs one pass;
//  2. fix the super-block's scales d (and dmin) from the largest of them, and choose for each sub-block the integer
//  scale
//     (and min), among the neighbours of the rounded one, that leaves least error;
//  3. solve for d (and dmin) again given all levels, and round to levels a last time.

namespace millrace {
namespace {

constexpr float kLargestHalf = 65504.0f;

// The float16 nearest to `value` within the finite ones.
std::uint16_t finite_half(double value) {
  return float_to_half(static_cast<float>(std::clamp<double>(value, -kLargestHalf, kLargestHalf)));
}

// Sums over a sub-block x with integer levels q: all that the least-squares steps need.
struct Sums {
  float q = 0, qq = 0, xq = 0;
};

// q = round(x * inverse + shift) clamped to [low, high]; writes it to `levels` unless that is null.
template <int kCount>
Sums quantize(const float* x, float inverse, float shift, float low, float high, float* levels = nullptr) {
  const F4 inverse4 = splat(inverse), shift4 = splat(shift), low4 = splat(low), high4 = splat(high);
  F4 q = {}, qq = {}, xq = {};
  for (int i = 0; i < kCount; i += 4) {
    const F4 x4 = load4(x + i);
    const F4 level = round4(clamp4(x4 * inverse4 + shift4, low4, high4));
    q += level;
    qq += level * level;
    xq += level * x4;
    if (levels != nullptr) store4(levels + i, level);
  }
  return {sum4(q), sum4(qq), sum4(xq)};
}

// --- Q4_K: w = scale * q - min, q in 0..15, min >= 0 -----------------------------------------------------------------

constexpr int kSub = 32;  // elements of a sub-block
constexpr int kSubBlocks = 8;
constexpr float kTop = 15;

// What a sub-block's elements sum to, once and for all.
struct SubBlock {
  const float* x = nullptr;
  float sum = 0, squares = 0, low = 0, high = 0;
};

SubBlock survey(const float* x) {
  F4 sum = {}, squares = {}, low = load4(x), high = low;
  for (int i = 0; i < kSub; i += 4) {
    const F4 v = load4(x + i);
    sum += v;
    squares += v * v;
    low = v < low ? v : low;
    high = v > high ? v : high;
  }
  return {x, sum4(sum), sum4(squares), std::min({low[0], low[1], low[2], low[3]}),
          std::max({high[0], high[1], high[2], high[3]})};
}

struct Affine {
  float scale = 0, min = 0;
  float error = 0;  // squared error that remains
};

// The best scale and min >= 0 for given levels. The error is exact at a least-squares optimum only, which this is.
Affine solve(const SubBlock& sub, const Sums& sums) {
  const float determinant = kSub * sums.qq - sums.q * sums.q;
  if (determinant > 0) {
    const float scale = (kSub * sums.xq - sub.sum * sums.q) / determinant;
    const float offset = (sub.sum * sums.qq - sums.q * sums.xq) / determinant;
    if (offset <= 0) return {scale, -offset, sub.squares - scale * sums.xq - offset * sub.sum};
  }
  if (sums.qq <= 0) return {0, 0, sub.squares};
  const float scale = sums.xq / sums.qq;
  return {scale, 0, sub.squares - scale * sums.xq};
}

Affine search_affine(const SubBlock& sub) {
  const float low = std::min(sub.low, 0.0f), range = sub.high - low;
  const float inverse = kTop / range;
  if (!(range > 0) || !std::isfinite(inverse)) return {0, -low, 0};  // all equal and not above 0, or near it
  // Steps from a little wider than the range suggests to narrower, where the outermost elements are clipped.
  constexpr float kWidest = 0.92f, kFactor = 0.02f;
  constexpr int kTries = 13;
  Affine best = solve(sub, quantize<kSub>(sub.x, inverse, -low * inverse, 0, kTop));
  for (int i = 0; i < kTries; ++i) {
    const float tried = inverse * (kWidest + kFactor * static_cast<float>(i));
    const Affine fit = solve(sub, quantize<kSub>(sub.x, tried, -low * tried, 0, kTop));
    if (fit.error < best.error && fit.scale > 0) best = fit;
  }
  for (int i = 0; i < 2 && best.scale > 0; ++i) {
    const float tried = 1.0f / best.scale;
    const Affine fit = solve(sub, quantize<kSub>(sub.x, tried, best.min * tried, 0, kTop));
    if (!(fit.error < best.error) || !(fit.scale > 0)) break;
    best = fit;
  }
  return best;
}

// Squared error of levels with these sums under w = scale * q - min.
float affine_error(const SubBlock& sub, const Sums& s, float scale, float min) {
  return sub.squares - 2 * scale * s.xq + 2 * min * sub.sum + scale * scale * s.qq - 2 * scale * min * s.q +
         kSub * min * min;
}

struct AffineLevels {
  std::uint8_t scale = 0, min = 0;
  Sums sums;
};

// The pair of six-bit integers near `fit` that leaves least error under d and dmin.
AffineLevels choose_levels(const SubBlock& sub, const Affine& fit, float d, float dmin) {
  const auto six_bits = [](float value, float unit) {
    return unit > 0 ? std::lrint(std::clamp(value / unit, 0.0f, 63.0f)) : 0;
  };
  const long scale0 = six_bits(fit.scale, d), min0 = six_bits(fit.min, dmin);
  AffineLevels best;
  float best_error = INFINITY;
  for (long scale = std::max(scale0 - 1, 0L); scale <= std::min(scale0 + 1, 63L); ++scale) {
    const float step = d * static_cast<float>(scale);
    const float inverse = step > 0 ? 1.0f / step : 0.0f;
    long min = min0;
    for (int round = 0; round < 2; ++round) {
      const float shift = dmin * static_cast<float>(min) * inverse;
      const Sums sums = quantize<kSub>(sub.x, inverse, shift, 0, kTop);
      // Given these levels, the min that fits them best.
      const long better = six_bits((step * sums.q - sub.sum) / kSub, dmin);
      const float error = affine_error(sub, sums, step, dmin * static_cast<float>(better));
      if (error < best_error) {
        best_error = error;
        best = {static_cast<std::uint8_t>(scale), static_cast<std::uint8_t>(better), sums};
      }
      if (better == min) break;
      min = better;
    }
  }
  return best;
}

// d and dmin that fit all levels best; unchanged where the system does not determine them.
void solve_super(const SubBlock* subs, const AffineLevels* levels, BlockQ4_K& out) {
  double a11 = 0, a12 = 0, a22 = 0, b1 = 0, b2 = 0;
  for (int s = 0; s < kSubBlocks; ++s) {
    const double scale = levels[s].scale, min = levels[s].min;
    a11 += scale * scale * levels[s].sums.qq;
    a12 -= scale * min * levels[s].sums.q;
    a22 += min * min * kSub;
    b1 += scale * levels[s].sums.xq;
    b2 -= min * subs[s].sum;
  }
  const double determinant = a11 * a22 - a12 * a12;
  if (determinant > 1e-9 * a11 * a22) {
    const double d = (b1 * a22 - b2 * a12) / determinant, dmin = (a11 * b2 - a12 * b1) / determinant;
    if (d > 0 && dmin >= 0) {
      out.d = finite_half(d);
      out.dmin = finite_half(dmin);
    }
  } else if (a11 > 0 && a22 == 0 && b1 > 0) {
    out.d = finite_half(b1 / a11);
  }
}

}  // namespace

void encode_q4_k(const float* x, BlockQ4_K& out) {
  SubBlock subs[kSubBlocks];
  Affine fits[kSubBlocks];
  float largest_scale = 0, largest_min = 0;
  for (int s = 0; s < kSubBlocks; ++s) {
    subs[s] = survey(x + kSub * s);
    fits[s] = search_affine(subs[s]);
    largest_scale = std::max(largest_scale, fits[s].scale);
    largest_min = std::max(largest_min, fits[s].min);
  }
  out.d = finite_half(largest_scale / 63);
  out.dmin = finite_half(largest_min / 63);

  AffineLevels levels[kSubBlocks];
  for (int s = 0; s < kSubBlocks; ++s) {
    levels[s] = choose_levels(subs[s], fits[s], half_to_float(out.d), half_to_float(out.dmin));
  }
  solve_super(subs, levels, out);

  const float d = half_to_float(out.d), dmin = half_to_float(out.dmin);
  std::uint8_t scales[kSubBlocks], mins[kSubBlocks];
  alignas(16) float q[kSuperBlock];
  for (int s = 0; s < kSubBlocks; ++s) {
    scales[s] = levels[s].scale;
    mins[s] = levels[s].min;
    const float step = d * static_cast<float>(scales[s]);
    const float inverse = step > 0 ? 1.0f / step : 0.0f;
    quantize<kSub>(x + kSub * s, inverse, dmin * static_cast<float>(mins[s]) * inverse, 0, kTop, q + kSub * s);
  }
  pack_scales_k4(scales, mins, out.scales);
  for (int i = 0; i < 128; ++i) {
    const int low = i / 32 * 64 + i % 32;
    out.qs[i] = static_cast<std::uint8_t>(static_cast<int>(q[low]) | static_cast<int>(q[low + 32]) << 4);
  }
}

// --- Q6_K: w = scale * q, q in -32..31, scale of either sign ---------------------------------------------------------

namespace {

constexpr int kSub6 = 16;
constexpr int kSubBlocks6 = 16;

// What the levels explain of the squares; the squared error is the sum of squares less this.
float gain(const Sums& s) { return s.qq > 0 ? s.xq * s.xq / s.qq : 0; }

Sums quantize6(const float* x, float inverse, float* levels = nullptr) {
  return quantize<kSub6>(x, inverse, 0, -32, 31, levels);
}

float reciprocal(float step) { return step != 0 ? std::clamp(1.0f / step, -1e30f, 1e30f) : 0; }

float search_scale(const float* x) {
  float extreme = 0;
  for (int i = 0; i < kSub6; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  if (!(std::fabs(extreme) > 1e-30f)) return 0;
  // The longer side of the levels goes to the extreme element.
  float best_gain = -1, best_scale = 0;
  constexpr int kTries = 11;
  for (int i = 0; i < kTries; ++i) {
    const float tried = -(30.5f + 0.3f * static_cast<float>(i)) / extreme;
    const Sums sums = quantize6(x, tried);
    if (const float g = gain(sums); g > best_gain) {
      best_gain = g;
      best_scale = sums.qq > 0 ? sums.xq / sums.qq : 0;
    }
  }
  return best_scale;
}

struct ScaleLevels {
  std::int8_t scale = 0;
  Sums sums;
};

ScaleLevels choose_scale(const float* x, float fit, float d) {
  ScaleLevels best;
  if (d == 0) return best;
  const long scale0 = std::lrint(std::clamp(fit / d, -128.0f, 127.0f));
  float best_error = 0;  // relative to all levels zero
  for (long scale = std::max(scale0 - 1, -128L); scale <= std::min(scale0 + 1, 127L); ++scale) {
    if (scale == 0) continue;
    const float step = d * static_cast<float>(scale);
    const Sums sums = quantize6(x, reciprocal(step));
    const float error = step * (step * sums.qq - 2 * sums.xq);
    if (error < best_error) {
      best_error = error;
      best = {static_cast<std::int8_t>(scale), sums};
    }
  }
  return best;
}

void pack_q6(const float* q, BlockQ6_K& out) {
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 32; ++i) {
      const float* part = q + 128 * h + i;
      const int a = static_cast<int>(part[0]) + 32, b = static_cast<int>(part[32]) + 32;
      const int c = static_cast<int>(part[64]) + 32, e = static_cast<int>(part[96]) + 32;
      out.ql[64 * h + i] = static_cast<std::uint8_t>((a & 15) | (c & 15) << 4);
      out.ql[64 * h + 32 + i] = static_cast<std::uint8_t>((b & 15) | (e & 15) << 4);
      out.qh[32 * h + i] = static_cast<std::uint8_t>(a >> 4 | b >> 4 << 2 | c >> 4 << 4 | e >> 4 << 6);
    }
  }
}

}  // namespace

void encode_q6_k(const float* x, BlockQ6_K& out) {
  float fits[kSubBlocks6], largest = 0;
  for (int s = 0; s < kSubBlocks6; ++s) {
    fits[s] = search_scale(x + kSub6 * s);
    if (std::fabs(fits[s]) > std::fabs(largest)) largest = fits[s];
  }
  out.d = finite_half(largest / -128);

  ScaleLevels levels[kSubBlocks6];
  double squares = 0, product = 0;
  for (int s = 0; s < kSubBlocks6; ++s) {
    levels[s] = choose_scale(x + kSub6 * s, fits[s], half_to_float(out.d));
    const double scale = levels[s].scale;
    squares += scale * scale * levels[s].sums.qq;
    product += scale * levels[s].sums.xq;
  }
  if (squares > 0) out.d = finite_half(product / squares);

  const float d = half_to_float(out.d);
  alignas(16) float q[kSuperBlock];
  for (int s = 0; s < kSubBlocks6; ++s) {
    out.scales[s] = levels[s].scale;
    quantize6(x + kSub6 * s, reciprocal(d * static_cast<float>(levels[s].scale)), q + kSub6 * s);
  }
  pack_q6(q, out);
}

}  // namespace millrace

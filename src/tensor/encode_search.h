// The search for levels and scales, a sub-block in each lane. Included by encode_body.h alone.
//
// How a block's numbers are found:
//  1. each sub-block alone: try a few step sizes around the one its range suggests; for each, round to levels and solve
//     the least-squares problem for the best scale (and min) given those levels. What remains of the squared error
//     follows from the sums alone, so a try costs one pass. Then round to the levels of what was found, and solve
//     again;
//  2. fix the super-block's scales d (and dmin) from the largest of them, and choose for each sub-block the integer
//  scale
//     (and min), among the neighbours of the rounded one, that leaves least error;
//  3. solve for d (and dmin) again given all levels; both once more; and round to levels a last time.
// A square error counts as much as its element's importance.
#pragma once

#include <cmath>

#include "tensor/blocks.h"
#include "tensor/lanes.h"

namespace millrace {
namespace {

/// Sub-blocks that are worked on together, whatever the width of a vector: a super-block of 16, or two of 8.
constexpr int kSide = 16;
constexpr int kGroups = kSide / kLanes;

/// Elements side by side: element j of sub-block s at values[j][s].
template <int kElements>
struct Columns {
  alignas(64) float values[kElements][kSide];
};

/// A group of sub-blocks, one a lane, and what their elements sum to.
template <int kElements>
struct Group {
  const float *x, *importance;  // Columns at the group's first sub-block
  Lanes weight = {}, sum = {}, squares = {}, low = {}, high = {};

  Group(const Columns<kElements>& columns, const Columns<kElements>& importances, int group)
      : x(&columns.values[0][group * kLanes]), importance(&importances.values[0][group * kLanes]) {
    low = high = load_lanes(x);
    for (int j = 0; j < kElements; ++j) {
      const Lanes v = load_lanes(x + j * kSide), w = load_lanes(importance + j * kSide), wv = w * v;
      weight += w;
      sum += wv;
      squares += wv * v;
      low = smaller(low, v);
      high = larger(high, v);
    }
  }
};

/// Weighted sums over a sub-block x with levels q: all that the least-squares steps need.
struct Sums {
  Lanes q = {}, qq = {}, xq = {};
};

/// Of each lane a's where better, else b's.
template <typename Mask>
Sums select(Mask better, const Sums& a, const Sums& b) {
  return {better ? a.q : b.q, better ? a.qq : b.qq, better ? a.xq : b.xq};
}

/// The levels of evenly spaced types: the integers of [low, high].
struct Integers {
  Lanes low, high;
  Integers(int lowest, int highest)
      : low(splat(static_cast<float>(lowest))), high(splat(static_cast<float>(highest))) {}
  Lanes operator()(Lanes v) const { return round_lanes(clamp(v, low, high)); }
};

/// The nearest of a book's levels, which ascend.
struct Iq4Levels {
  Lanes operator()(Lanes v) const {
    Lanes level = splat(kIq4Codebook[0]);
    for (int i = 1; i < 16; ++i) {
      const float below = kIq4Codebook[i - 1], above = kIq4Codebook[i];
      level += v > splat((below + above) / 2) ? splat(above - below) : Lanes{};
    }
    return level;
  }
};
struct Mxfp4Levels {
  Lanes operator()(Lanes v) const {
    const Lanes size = magnitude(v);
    Lanes level = {};
    for (int i = 1; i < 8; ++i) {
      const float below = kMxfp4Codebook[i - 1], above = kMxfp4Codebook[i];
      level += size > splat((below + above) / 2) ? splat(above - below) : Lanes{};
    }
    return v < Lanes{} ? -level : level;
  }
};

/// q = the level nearest to x * inverse + shift; written to `levels` (as Columns) unless that is null.
template <int kElements, typename Levels>
Sums quantize(const Group<kElements>& group, const Levels& nearest, Lanes inverse, Lanes shift,
              float* levels = nullptr) {
  Sums sums;
  for (int j = 0; j < kElements; ++j) {
    const Lanes v = load_lanes(group.x + j * kSide), w = load_lanes(group.importance + j * kSide);
    const Lanes level = nearest(v * inverse + shift);
    const Lanes weighted = w * level;
    sums.q += weighted;
    sums.qq += weighted * level;
    sums.xq += weighted * v;
    if (levels != nullptr) store_lanes(levels + j * kSide, level);
  }
  return sums;
}

/// 1 / step; 0 where that is 0 or no number comes of it.
inline Lanes reciprocal(Lanes step) {
  const Lanes inverse = 1.0f / step;
  return magnitude(inverse) < 1e30f ? inverse : Lanes{};
}

// --- w = scale * q - min ---------------------------------------------------------------------------------------------

struct Affine {
  Lanes scale = {}, min = {};
  Lanes error = {};  // weighted squared error that remains
};

/// Where it is asked for, the min may not be negative.
enum class Min { any, not_negative };

/// The best scale and min for given levels.
template <int kElements>
Affine solve(const Group<kElements>& group, const Sums& sums, Min kind) {
  const Lanes determinant = group.weight * sums.qq - sums.q * sums.q;
  const Lanes scale = (group.weight * sums.xq - group.sum * sums.q) / determinant;
  const Lanes offset = (group.sum * sums.qq - sums.q * sums.xq) / determinant;
  const Lanes alone = sums.xq / sums.qq;  // without a min
  auto both = determinant > Lanes{};
  if (kind == Min::not_negative) both = both & (offset <= Lanes{});
  const auto one = sums.qq > Lanes{};
  Affine fit;
  fit.scale = both ? scale : (one ? alone : Lanes{});
  fit.min = both ? -offset : Lanes{};
  fit.error = group.squares - fit.scale * sums.xq + fit.min * group.sum;
  return fit;
}

/// Step sizes that are tried: those of levels from the lowest to the highest element, times factor.
struct Tries {
  float widest, step;
  int count;
};

constexpr Tries affine_tries(int top) {
  if (top <= 3) return {0.80f, 0.06f, 14};
  if (top <= 15) return {0.92f, 0.02f, 13};
  return {0.95f, 0.015f, 10};
}

template <int kElements>
Affine search_affine(const Group<kElements>& group, int top, Min kind) {
  const Integers levels(0, top);
  const Lanes low = kind == Min::any ? group.low : smaller(group.low, Lanes{}), range = group.high - low;
  const auto spread = range > 1e-30f;
  const Lanes inverse = spread ? static_cast<float>(top) / range : Lanes{};
  Affine best = solve(group, quantize(group, levels, inverse, -low * inverse), kind);
  const auto take = [&](const Affine& fit) {
    const auto better = (fit.error < best.error) & (fit.scale > Lanes{});
    best.scale = better ? fit.scale : best.scale;
    best.min = better ? fit.min : best.min;
    best.error = better ? fit.error : best.error;
  };
  const Tries tries = affine_tries(top);
  for (int i = 0; i < tries.count; ++i) {
    const Lanes tried = inverse * (tries.widest + tries.step * static_cast<float>(i));
    take(solve(group, quantize(group, levels, tried, -low * tried), kind));
  }
  for (int i = 0; i < 2; ++i) {
    const Lanes tried = reciprocal(best.scale);
    take(solve(group, quantize(group, levels, tried, best.min * tried), kind));
  }
  const auto found = spread & (best.scale > Lanes{});  // else all are equal, or near it
  best.scale = found ? best.scale : Lanes{};
  best.min = found ? best.min : -low;
  return best;
}

/// Integer scales and mins of the sub-blocks of a group, and the sums that their levels have.
struct AffineChoice {
  Lanes scale = {}, min = {};
  Sums sums;
};

/// The pair of integers of [0, most] near scale / d and min / dmin that leaves least error.
template <int kElements>
AffineChoice choose_affine(const Group<kElements>& group, Lanes scale, Lanes min, int top, float most, Lanes d,
                           Lanes dmin) {
  const Integers levels(0, top);
  const Lanes per_d = reciprocal(d), per_dmin = reciprocal(dmin), most4 = splat(most);
  const auto whole = [&](Lanes value) { return round_lanes(clamp(value, Lanes{}, most4)); };
  const Lanes scale0 = whole(scale * per_d), min0 = whole(min * per_dmin);
  AffineChoice best;
  Lanes least = splat(INFINITY);
  for (int near = -1; near <= 1; ++near) {
    const Lanes tried = clamp(scale0 + static_cast<float>(near), Lanes{}, most4), step = d * tried;
    const Lanes inverse = reciprocal(step);
    Lanes tried_min = min0;
    for (int round = 0; round < 2; ++round) {
      const Sums sums = quantize(group, levels, inverse, dmin * tried_min * inverse);
      // Given these levels, the min that fits them best.
      tried_min = whole((step * sums.q - group.sum) / group.weight * per_dmin);
      const Lanes m = dmin * tried_min;
      const Lanes error =
          step * (step * sums.qq - 2.0f * sums.xq) + m * (2.0f * (group.sum - step * sums.q) + group.weight * m);
      const auto better = error < least;
      least = better ? error : least;
      best.scale = better ? tried : best.scale;
      best.min = better ? tried_min : best.min;
      best.sums = select(better, sums, best.sums);
    }
  }
  return best;
}

// --- w = scale * q, q from levels of both signs, scale of either sign ------------------------------------------------

/// What is tried: the element of largest magnitude at the lowest level, and at the highest, times factors around 1.
struct Ends {
  float low, high;  // 0: not tried
  Tries factors;
};

/// The best scale for each sub-block alone.
template <int kElements, typename Levels>
Lanes search_scale(const Group<kElements>& group, const Levels& levels, const Ends& ends) {
  const Lanes extreme = -group.low > group.high ? group.low : group.high;
  const auto spread = magnitude(extreme) > 1e-30f;
  Lanes best_gain = splat(-1), best = {};
  const auto take = [&](Lanes inverse) {
    const Sums sums = quantize(group, levels, inverse, Lanes{});
    const auto any = sums.qq > Lanes{};
    const Lanes scale = any ? sums.xq / sums.qq : Lanes{};
    const Lanes gain = scale * sums.xq;  // what the levels explain of the squares
    const auto better = gain > best_gain;
    best_gain = better ? gain : best_gain;
    best = better ? scale : best;
  };
  for (const float end : {ends.low, ends.high}) {
    if (end == 0) continue;
    for (int i = 0; i < ends.factors.count; ++i) {
      const float factor = ends.factors.widest + ends.factors.step * static_cast<float>(i);
      take(spread ? end * factor / extreme : Lanes{});
    }
  }
  for (int i = 0; i < 2; ++i) take(reciprocal(best));
  return spread ? best : Lanes{};
}

struct ScaleChoice {
  Lanes scale = {};
  Sums sums;
};

/// The integer of [low, high] near fit / d that leaves least error.
template <int kElements, typename Levels>
ScaleChoice choose_scale(const Group<kElements>& group, Lanes fit, const Levels& levels, float low, float high,
                         Lanes d) {
  const Lanes low4 = splat(low), high4 = splat(high);
  const Lanes scale0 = round_lanes(clamp(fit * reciprocal(d), low4, high4));
  ScaleChoice best;
  Lanes least = {};  // relative to all levels zero
  for (int near = -1; near <= 1; ++near) {
    const Lanes tried = clamp(scale0 + static_cast<float>(near), low4, high4), step = d * tried;
    const Sums sums = quantize(group, levels, reciprocal(step), Lanes{});
    const Lanes error = step * (step * sums.qq - 2.0f * sums.xq);
    const auto better = error < least;
    least = better ? error : least;
    best.scale = better ? tried : best.scale;
    best.sums = select(better, sums, best.sums);
  }
  return best;
}

}  // namespace
}  // namespace millrace

// From floats to weights on a grid and to ternary ones. Included by encode_body.h alone.
//
// How a block's numbers are found. What a point p of the grid leaves of the squared error of its weights x at a scale s
// is the sum of w x^2 plus s (s B[p] - A[p]), where B[p] is the sum of w g^2 and A[p] twice that of w x g, over the
// point's levels g. A and B do not depend on s. So they are worked out once for every point, and every scale that is
// tried then finds the best of all points by one pass over two arrays; no list of neighbours is needed.
//  1. Each group of weights with a scale of its own alone: try scales around the one that its largest weight suggests,
//     then solve for the best scale of the points that were found, twice.
//  2. d from the largest scale; for each group the integer near its scale that leaves least error; solve for d again;
//     and once more.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tensor/blocks.h"
#include "tensor/encode_blocks.h"
#include "tensor/grids.h"
#include "tensor/half.h"
#include "tensor/lanes.h"

namespace millrace {
namespace {

/// A type of weights on a grid:
///   Block, kPoint      weights of a point, 4 or 8; kGroup: of a scale; kTopScale: of s
///   kBottom, kTop      the smallest and the largest level, by magnitude
///   kSigns             stored beside the points: none, all of eight, or seven
///   kShifts            1, or 2 where a bit adds one to all levels or takes it away; kShiftOfGroup: a bit a scale
///   level(point, j)    of weight j
///   put_*              into a block that is zero so far; i counts points, octets or scales in it
enum class Signs : std::uint8_t { none, seven, eight };

/// Adds to nibble i, the low one of a byte first.
void put_nibble(std::uint8_t* nibbles, int i, int value) {
  nibbles[i / 2] = static_cast<std::uint8_t>(nibbles[i / 2] | value << (4 * (i % 2)));
}

/// Byte j of a point.
template <typename Table>
int level_on(const Table& grid, int point, int j) {
  return static_cast<int>(grid.at[point] >> (8 * j) & 255);
}

struct Iq2Base {
  static constexpr int kPoint = 8, kBottom = 8, kTop = 43, kTopScale = 15, kShifts = 1;
  static constexpr bool kShiftOfGroup = false;
};

struct Iq2Xxs : Iq2Base {
  using Block = BlockIQ2_XXS;
  static constexpr int kGroup = 32, kPoints = 256;
  static constexpr Signs kSigns = Signs::seven;
  static int level(int point, int j) { return level_on(kIq2XxsGrid, point, j); }
  static void put_point(Block& block, int i, int point) {
    block.parts[i / 4].points[i % 4] = static_cast<std::uint8_t>(point);
  }
  static void put_signs(Block& block, int i, unsigned signs) {
    block.parts[i / 4].signs_and_scale |= (signs & 127) << (7 * (i % 4));
  }
  static void put_scale(Block& block, int i, int s) {
    block.parts[i].signs_and_scale |= static_cast<std::uint32_t>(s) << 28;
  }
};

struct Iq2Xs : Iq2Base {
  using Block = BlockIQ2_XS;
  static constexpr int kGroup = 16, kPoints = 512;
  static constexpr Signs kSigns = Signs::seven;
  static int level(int point, int j) { return level_on(kIq2XsGrid, point, j); }
  static void put_point(Block& block, int i, int point) {
    block.qs[i] = static_cast<std::uint16_t>(block.qs[i] | point);
  }
  static void put_signs(Block& block, int i, unsigned signs) {
    block.qs[i] = static_cast<std::uint16_t>(block.qs[i] | (signs & 127) << 9);
  }
  static void put_scale(Block& block, int i, int s) { put_nibble(block.scales, i, s); }
};

struct Iq2S : Iq2Base {
  using Block = BlockIQ2_S;
  static constexpr int kGroup = 16, kPoints = 1024;
  static constexpr Signs kSigns = Signs::eight;
  static int level(int point, int j) { return level_on(kIq2SGrid, point, j); }
  static void put_point(Block& block, int i, int point) {
    block.qs[i] = static_cast<std::uint8_t>(point & 255);
    block.qh[i / 4] = static_cast<std::uint8_t>(block.qh[i / 4] | point >> 8 << (2 * (i % 4)));
  }
  static void put_signs(Block& block, int i, unsigned signs) { block.signs[i] = static_cast<std::uint8_t>(signs); }
  static void put_scale(Block& block, int i, int s) { put_nibble(block.scales, i, s); }
};

struct Iq3Base {
  static constexpr int kPoint = 4, kGroup = 32, kTopScale = 15, kShifts = 1;
  static constexpr bool kShiftOfGroup = false;
};

struct Iq3Xxs : Iq3Base {
  using Block = BlockIQ3_XXS;
  static constexpr int kBottom = 4, kTop = 62, kPoints = 256;
  static constexpr Signs kSigns = Signs::seven;
  static int level(int point, int j) { return level_on(kIq3XxsGrid, point, j); }
  static void put_point(Block& block, int i, int point) { block.qs[i] = static_cast<std::uint8_t>(point); }
  static void put_signs(Block& block, int i, unsigned signs) {
    block.signs_and_scales[i / 4] |= (signs & 127) << (7 * (i % 4));
  }
  static void put_scale(Block& block, int i, int s) {
    block.signs_and_scales[i] |= static_cast<std::uint32_t>(s) << 28;
  }
};

struct Iq3S : Iq3Base {
  using Block = BlockIQ3_S;
  static constexpr int kBottom = 1, kTop = 15, kPoints = 512;
  static constexpr Signs kSigns = Signs::eight;
  static int level(int point, int j) { return level_on(kIq3SGrid, point, j); }
  static void put_point(Block& block, int i, int point) {
    block.qs[i] = static_cast<std::uint8_t>(point & 255);
    block.qh[i / 8] = static_cast<std::uint8_t>(block.qh[i / 8] | point >> 8 << (i % 8));
  }
  static void put_signs(Block& block, int i, unsigned signs) { block.signs[i] = static_cast<std::uint8_t>(signs); }
  static void put_scale(Block& block, int i, int s) { put_nibble(block.scales, i, s); }
};

/// Levels are eight times -1, 0 or 1; the shift is one.
struct Iq1Base {
  static constexpr int kPoint = 8, kPoints = 2048, kBottom = 9, kTop = 9, kTopScale = 7, kShifts = 2;
  static constexpr Signs kSigns = Signs::none;
  static int level(int point, int j) { return level_on(kIq1Grid, point, j) - 8; }
};

struct Iq1S : Iq1Base {
  using Block = BlockIQ1_S;
  static constexpr int kGroup = 32;
  static constexpr bool kShiftOfGroup = true;
  static void put_point(Block& block, int i, int point) {
    block.qs[i] = static_cast<std::uint8_t>(point & 255);
    block.qh[i / 4] = static_cast<std::uint16_t>(block.qh[i / 4] | point >> 8 << (3 * (i % 4)));
  }
  static void put_minus(Block& block, int i) { block.qh[i / 4] = static_cast<std::uint16_t>(block.qh[i / 4] | 0x8000); }
  static void put_scale(Block& block, int i, int s) { block.qh[i] = static_cast<std::uint16_t>(block.qh[i] | s << 12); }
};

struct Iq1M : Iq1Base {
  using Block = BlockIQ1_M;
  static constexpr int kGroup = 16;
  static constexpr bool kShiftOfGroup = false;
  static void put_point(Block& block, int i, int point) {
    block.qs[i] = static_cast<std::uint8_t>(point & 255);
    put_nibble(block.qh, i, point >> 8);
  }
  static void put_minus(Block& block, int i) { put_nibble(block.qh, i, 8); }
  static void put_scale(Block& block, int i, int s) {
    block.scales[i / 4] = static_cast<std::uint16_t>(block.scales[i / 4] | s << (3 * (i % 4)));
  }
};

template <typename Block>
void put_d(Block& block, std::uint16_t d) {
  block.d = d;
}
void put_d(BlockIQ1_M& block, std::uint16_t d) {
  for (int i = 0; i < 4; ++i) {
    block.scales[i] = static_cast<std::uint16_t>(block.scales[i] | (d >> (4 * i) & 15) << 12);
  }
}

/// The levels of all points, weight by weight, and their squares.
template <typename Type>
struct Levels {
  alignas(64) float level[Type::kShifts][Type::kPoint][Type::kPoints],
      square[Type::kShifts][Type::kPoint][Type::kPoints];
  Levels() {
    for (int shift = 0; shift < Type::kShifts; ++shift) {
      const int add = Type::kShifts == 1 ? 0 : 1 - 2 * shift;
      for (int j = 0; j < Type::kPoint; ++j) {
        for (int point = 0; point < Type::kPoints; ++point) {
          const auto g = static_cast<float>(Type::level(point, j) + add);
          level[shift][j][point] = g;
          square[shift][j][point] = g * g;
        }
      }
    }
  }
};

/// What is left of the squared error at a scale, less what the weights are worth alone.
inline float error_at(float s, float a, float b) { return s * (s * b - a); }

/// The A and B of one point's weights, for each point and shift.
template <typename Type>
struct PointSums {
  alignas(64) float a[Type::kShifts][Type::kPoints], b[Type::kShifts][Type::kPoints];

  PointSums() = default;
  void fill(const Levels<Type>& levels, const float* x, const float* w) {
    for (int shift = 0; shift < Type::kShifts; ++shift) {
      for (int point = 0; point < Type::kPoints; point += kLanes) {
        Lanes sum_a = {}, sum_b = {};
        for (int j = 0; j < Type::kPoint; ++j) {
          sum_a += splat(2 * w[j] * x[j]) * load_lanes(&levels.level[shift][j][point]);
          sum_b += splat(w[j]) * load_lanes(&levels.square[shift][j][point]);
        }
        store_lanes(&a[shift][point], sum_a);
        store_lanes(&b[shift][point], sum_b);
      }
    }
  }

  /// The least error at s. REQUIRES: s > 0.
  float least(int shift, float s) const {
    const Lanes scale = splat(s);
    Lanes best = splat(INFINITY);
    for (int point = 0; point < Type::kPoints; point += kLanes) {
      best = smaller(scale * load_lanes(&b[shift][point]) - load_lanes(&a[shift][point]), best);
    }
    float least = best[0];
    for (int i = 1; i < kLanes; ++i) least = std::min<float>(least, best[i]);
    return s * least;
  }

  /// The first point that leaves it.
  int best(int shift, float s) const {
    const Lanes scale = splat(s);
    Lanes best = splat(INFINITY), where = {}, at;
    for (int i = 0; i < kLanes; ++i) at[i] = static_cast<float>(i);
    for (int point = 0; point < Type::kPoints; point += kLanes) {
      const Lanes error = scale * load_lanes(&b[shift][point]) - load_lanes(&a[shift][point]);
      const auto better = error < best;
      best = better ? error : best;
      where = better ? at : where;
      at += static_cast<float>(kLanes);
    }
    int lane = 0;
    for (int i = 1; i < kLanes; ++i) {
      if (best[i] < best[lane] || (best[i] == best[lane] && where[i] < where[lane])) lane = i;
    }
    return static_cast<int>(where[lane]);
  }
};

/// The points of a group at a scale, and what they sum to.
template <typename Type>
struct GroupChoice {
  static constexpr int kCount = Type::kGroup / Type::kPoint;
  int points[kCount] = {}, shifts[kCount] = {};
  float a = 0, b = 0;

  GroupChoice(const PointSums<Type>* sums, float s) {
    int of_group = 0;
    if constexpr (Type::kShiftOfGroup) {
      float errors[Type::kShifts] = {};
      for (int shift = 0; shift < Type::kShifts; ++shift) {
        for (int i = 0; i < kCount; ++i) errors[shift] += sums[i].least(shift, s);
      }
      of_group = errors[1] < errors[0] ? 1 : 0;
    }
    for (int i = 0; i < kCount; ++i) {
      shifts[i] = of_group;
      if constexpr (Type::kShifts == 2 && !Type::kShiftOfGroup) {
        shifts[i] = sums[i].least(1, s) < sums[i].least(0, s) ? 1 : 0;
      }
      points[i] = sums[i].best(shifts[i], s);
      a += sums[i].a[shifts[i]][points[i]];
      b += sums[i].b[shifts[i]][points[i]];
    }
  }
};

/// The least error of a group at a scale.
template <typename Type>
float group_error(const PointSums<Type>* sums, float s) {
  constexpr int kCount = Type::kGroup / Type::kPoint;
  float all[Type::kShifts] = {}, each = 0;
  for (int i = 0; i < kCount; ++i) {
    float least = INFINITY;
    for (int shift = 0; shift < Type::kShifts; ++shift) {
      const float error = sums[i].least(shift, s);
      all[shift] += error;
      least = std::min(least, error);
    }
    each += least;
  }
  return Type::kShiftOfGroup ? std::min(all[0], all[Type::kShifts - 1]) : each;
}

/// The best scale of a group alone; 0 where nothing is to be gained.
template <typename Type>
float group_scale(const PointSums<Type>* sums, float largest) {
  // Fewer where a pass over the points is long: what they miss, the solving makes up for.
  constexpr int kPasses = Type::kPoints * Type::kShifts / Type::kPoint;
  constexpr int kTries = kPasses > 256 ? 5 : kPasses > 32 ? 8 : 16;
  constexpr float kFirst = 0.60f, kStep = 0.80f / kTries;
  if (!(largest > 1e-30f)) return 0;
  const float whole = largest / static_cast<float>(Type::kTop);
  float best = 0, least = 0;
  const auto take = [&](float s) {
    if (!(s > 0)) return;
    const float error = group_error<Type>(sums, s);
    if (error < least) best = s, least = error;
  };
  for (int i = 0; i < kTries; ++i) take(whole * (kFirst + kStep * static_cast<float>(i)));
  take(largest / static_cast<float>(Type::kBottom));  // all alike
  for (int i = 0; i < 2 && best > 0; ++i) {
    const GroupChoice<Type> choice(sums, best);
    if (choice.b > 0) take(choice.a / (2 * choice.b));
  }
  return best;
}

/// A super-block's weights and what each counts, as load_columns and load_importance bring them.
template <int kElements>
struct BlockWeights {
  float x[kElements], w[kElements];
  BlockWeights(const float* from, const float* importance) {
    constexpr float kLeast = 1e-3f;
    double sum = 0;
    for (int i = 0; i < kElements; ++i) {
      const float v = from[i];
      x[i] = v == v ? std::min(std::max(v, -kLargestEncodable), kLargestEncodable) : 0.0f;
      w[i] = 1;
      if (importance != nullptr) sum += importance[i];
    }
    if (!(sum > 0) || !std::isfinite(sum)) return;
    const double per_mean = kElements / sum;
    for (int i = 0; i < kElements; ++i) w[i] = std::max(static_cast<float>(importance[i] * per_mean), kLeast);
  }
};
using SuperWeights = BlockWeights<kSuperBlock>;

/// Bits of the negative ones of eight weights, which become their magnitudes. Where seven signs are stored and the
/// number of minuses is odd, the weight that loses least by it takes the wrong sign.
template <Signs kSigns>
unsigned take_signs(float* x, const float* w) {
  unsigned signs = 0;
  for (int j = 0; j < 8; ++j) {
    if (x[j] < 0) signs |= 1u << j;
    x[j] = std::fabs(x[j]);
  }
  if (kSigns == Signs::seven && __builtin_popcount(signs) % 2 != 0) {
    int least = 0;
    for (int j = 1; j < 8; ++j) {
      if (w[j] * x[j] * x[j] < w[least] * x[least] * x[least]) least = j;
    }
    x[least] = -x[least];
    signs ^= 1u << least;
  }
  return signs;
}

template <typename Type>
void encode_super_on_grid(const Levels<Type>& levels, std::vector<PointSums<Type>>& sums, SuperWeights& weights,
                          typename Type::Block& block) {
  constexpr int kScales = kSuperBlock / Type::kGroup, kOfGroup = Type::kGroup / Type::kPoint;
  std::memset(&block, 0, sizeof block);
  if constexpr (Type::kSigns != Signs::none) {
    for (int i = 0; i < kSuperBlock / 8; ++i) {
      Type::put_signs(block, i, take_signs<Type::kSigns>(weights.x + 8 * i, weights.w + 8 * i));
    }
  }
  float fits[kScales], most = 0;
  for (int g = 0; g < kScales; ++g) {
    float largest = 0;
    for (int i = Type::kGroup * g; i < Type::kGroup * (g + 1); ++i)
      largest = std::max(largest, std::fabs(weights.x[i]));
    for (int i = kOfGroup * g; i < kOfGroup * (g + 1); ++i) {
      sums[static_cast<std::size_t>(i)].fill(levels, weights.x + Type::kPoint * i, weights.w + Type::kPoint * i);
    }
    fits[g] = group_scale<Type>(&sums[static_cast<std::size_t>(kOfGroup * g)], largest);
    most = std::max(most, fits[g]);
  }
  constexpr float kStep = Grid<typename Type::Block>::kStep;
  const auto half = [](float d) { return float_to_half(std::min(d, 65504.0f)); };
  std::uint16_t d = half(most / (kStep * (2 * Type::kTopScale + 1)));
  int scales[kScales] = {};
  for (int round = 0; round < 2 && d != 0; ++round) {
    const float step = half_to_float(d) * kStep;
    double squares = 0, product = 0;
    for (int g = 0; g < kScales; ++g) {
      const PointSums<Type>* const of_group = &sums[static_cast<std::size_t>(kOfGroup * g)];
      const int near = static_cast<int>(std::lround(std::min((fits[g] / step - 1) / 2, 64.0f)));
      float least = INFINITY;
      for (int s = std::max(near - 1, 0); s <= std::min(std::max(near + 1, 0), Type::kTopScale); ++s) {
        const float error = group_error<Type>(of_group, step * static_cast<float>(2 * s + 1));
        if (error < least) scales[g] = s, least = error;
      }
      const auto odd = static_cast<float>(2 * scales[g] + 1);
      const GroupChoice<Type> choice(of_group, step * odd);
      squares += static_cast<double>(odd) * odd * choice.b;
      product += static_cast<double>(odd) * choice.a / 2;
    }
    if (round == 0 && squares > 0 && product > 0) d = half(static_cast<float>(product / squares) / kStep);
  }
  put_d(block, d);
  if (d == 0) return;
  const float step = half_to_float(d) * kStep;
  for (int g = 0; g < kScales; ++g) {
    const GroupChoice<Type> choice(&sums[static_cast<std::size_t>(kOfGroup * g)],
                                   step * static_cast<float>(2 * scales[g] + 1));
    Type::put_scale(block, g, scales[g]);
    for (int i = 0; i < kOfGroup; ++i) {
      Type::put_point(block, kOfGroup * g + i, choice.points[i]);
      if constexpr (Type::kShifts == 2) {
        if (choice.shifts[i] == 1) Type::put_minus(block, kOfGroup * g + i);
      }
    }
  }
}

template <typename Type>
void encode_on_grid(const float* x, const float* importance, std::int64_t count, std::byte* out) {
  static const Levels<Type>* const levels = new Levels<Type>;  // of the process, as what it is made of
  std::vector<PointSums<Type>> sums(kSuperBlock / Type::kPoint);
  auto* const blocks = reinterpret_cast<typename Type::Block*>(out);
  for (std::int64_t b = 0; b < count / kSuperBlock; ++b) {
    SuperWeights weights(x + b * kSuperBlock, importance == nullptr ? nullptr : importance + b * kSuperBlock);
    encode_super_on_grid<Type>(*levels, sums, weights, blocks[b]);
  }
}

// --- Ternary weights: d times -1, 0 or 1 -----------------------------------------------------------------------------

/// The best d: the weights are rounded at a few thresholds, each time d is solved for, and then once more from the
/// best.
float ternary_scale(const SuperWeights& weights) {
  float largest = 0;
  for (const float x : weights.x) largest = std::max(largest, std::fabs(x));
  if (!(largest > 1e-30f)) return 0;
  float best = 0;
  double gain = 0;  // what the levels explain of the squares
  float magnitudes[kSuperBlock];
  for (int i = 0; i < kSuperBlock; ++i) magnitudes[i] = std::fabs(weights.x[i]);
  const auto take = [&](float threshold) {
    // Sixteen sums side by side, whatever the width of a vector.
    float products[16] = {}, counts[16] = {};
    for (int i = 0; i < kSuperBlock; i += 16) {
      for (int l = 0; l < 16; ++l) {
        const float w = magnitudes[i + l] > threshold ? weights.w[i + l] : 0.0f;
        products[l] += w * magnitudes[i + l];
        counts[l] += w;
      }
    }
    double product = 0, squares = 0;
    for (int l = 0; l < 16; ++l) product += products[l], squares += counts[l];
    if (squares == 0 || product * product <= gain * squares) return;
    gain = product * product / squares;
    best = static_cast<float>(product / squares);
  };
  for (int i = 1; i <= 16; ++i) take(largest * static_cast<float>(i) / 32);
  for (int i = 0; i < 2; ++i) take(best / 2);
  return best;
}

void put_digits(const std::uint8_t* digits, BlockTQ2_0& block) {
  for (int j = 0; j < kSuperBlock; ++j) {
    std::uint8_t& byte = block.qs[32 * (j / 128) + j % 32];
    byte = static_cast<std::uint8_t>(byte | digits[j] << (2 * (j / 32 % 4)));
  }
}

/// Digits in base 3, the first one the highest of five, as the fraction of 256 that is rounded up: so that taking the
/// top digit off by a multiplication with 3 finds each of them.
std::uint8_t base_3(const std::uint8_t* digits, int count, int stride) {
  int number = 0;
  for (int n = 0; n < 5; ++n) number = 3 * number + (n < count ? digits[n * stride] : 0);
  return static_cast<std::uint8_t>((number * 256 + 242) / 243);
}

void put_digits(const std::uint8_t* digits, BlockTQ1_0& block) {
  for (int i = 0; i < 32; ++i) block.qs[i] = base_3(digits + i, 5, 32);
  for (int i = 0; i < 16; ++i) block.qs[32 + i] = base_3(digits + 160 + i, 5, 16);
  for (int i = 0; i < 4; ++i) block.qh[i] = base_3(digits + 240 + i, 4, 4);
}

template <typename Block>
void encode_ternary(const float* x, const float* importance, std::int64_t count, std::byte* out) {
  auto* const blocks = reinterpret_cast<Block*>(out);
  for (std::int64_t b = 0; b < count / kSuperBlock; ++b) {
    const SuperWeights weights(x + b * kSuperBlock, importance == nullptr ? nullptr : importance + b * kSuperBlock);
    std::memset(&blocks[b], 0, sizeof(Block));
    const std::uint16_t d = float_to_half(std::min(ternary_scale(weights), 65504.0f));
    const float threshold = half_to_float(d) / 2;
    std::uint8_t digits[kSuperBlock];
    for (int i = 0; i < kSuperBlock; ++i) {
      digits[i] = weights.x[i] > threshold ? 2 : weights.x[i] < -threshold ? 0 : 1;
    }
    put_digits(digits, blocks[b]);
    blocks[b].d = d;
  }
}

}  // namespace
}  // namespace millrace

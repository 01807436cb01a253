// From floats to blocks, sixteen sub-blocks side by side: what encode_plain.cpp, encode_avx2.cpp and encode_avx512.cpp
// are made of, each for its width of vectors. encode_search.h says how levels and scales are found.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tensor/encode_blocks.h"
#include "tensor/encode_fields.h"
#include "tensor/encode_grid.h"
#include "tensor/encode_search.h"
#include "tensor/half.h"
#include "tensor/nibbles.h"

namespace millrace {
namespace {

using Side = std::array<float, kSide>;  // a number for each sub-block

template <int kElements>
using Groups = std::array<Group<kElements>, kGroups>;

template <int kElements>
Groups<kElements> groups_of(const Columns<kElements>& x, const Columns<kElements>& importance) {
  return [&]<std::size_t... g>(std::index_sequence<g...>) {
    return Groups<kElements>{Group<kElements>(x, importance, static_cast<int>(g))...};
  }
  (std::make_index_sequence<kGroups>{});
}

// The float16 nearest to `value` within the finite ones, and what it is.
std::uint16_t finite_half(double value) {
  return float_to_half(static_cast<float>(std::clamp<double>(value, -65504.0, 65504.0)));
}

/// Up to kSide sub-blocks, zeros behind the last. NaN becomes 0, what no block can hold the largest magnitude.
template <int kElements>
void load_columns(const float* x, int sub_blocks, Columns<kElements>& out) {
  if (sub_blocks < kSide) out = {};
  for (int s = 0; s < sub_blocks; ++s) {
    for (int j = 0; j < kElements; ++j) {
      const float v = x[s * kElements + j];
      out.values[j][s] = v == v ? std::min(std::max(v, -kLargestEncodable), kLargestEncodable) : 0.0f;
    }
  }
}

/// Importances of blocks of `block` elements: brought to a mean of 1 in each, and none so small that its element might
/// become anything. null: ones.
template <int kElements>
void load_importance(const float* importance, int sub_blocks, int block, Columns<kElements>& out) {
  constexpr float kLeast = 1e-3f;
  for (auto& row : out.values) std::fill(std::begin(row), std::end(row), 1.0f);
  if (importance == nullptr) return;
  for (int first = 0; first < sub_blocks * kElements; first += block) {
    double sum = 0;
    for (int i = first; i < first + block; ++i) sum += importance[i];
    if (!(sum > 0) || !std::isfinite(sum)) continue;
    const double per_mean = block / sum;
    for (int i = first; i < first + block; ++i) {
      out.values[i % kElements][i / kElements] = std::max(static_cast<float>(importance[i] * per_mean), kLeast);
    }
  }
}

/// A sub-block's levels as integers that start at 0.
template <int kElements>
struct LevelBytes {
  std::uint8_t values[kElements];
};

template <int kElements>
LevelBytes<kElements> level_bytes(const Columns<kElements>& levels, int sub_block, int lowest) {
  LevelBytes<kElements> out;
  for (int j = 0; j < kElements; ++j) {
    out.values[j] = static_cast<std::uint8_t>(static_cast<int>(levels.values[j][sub_block]) - lowest);
  }
  return out;
}

// --- Blocks of 32 with a scale of their own --------------------------------------------------------------------------

constexpr Tries kFourBitTries = {0.86f, 0.03f, 10};
constexpr Tries kFiveBitTries = {0.92f, 0.02f, 8};

std::uint32_t fifth_bits(const std::uint8_t* q) {
  std::uint32_t bits = 0;
  for (int j = 0; j < kBlock; ++j) bits |= static_cast<std::uint32_t>(q[j] >> 4) << j;
  return bits;
}

/// A type without a min: levels from -2^(bits - 1) up, and a float16 scale.
template <typename Block_, int kLowest>
struct Symmetric {
  using Block = Block_;
  static constexpr int kFirst = kLowest;
  static Integers levels() { return {kLowest, -kLowest - 1}; }
  static Affine search(const Group<kBlock>& group) {
    const Ends ends = {kLowest, -kLowest - 1, kLowest == -8 ? kFourBitTries : kFiveBitTries};
    Affine fit;
    fit.scale = search_scale(group, levels(), ends);
    return fit;
  }
  static void set_scale(Block& block, float& scale, float& /*min*/) {
    scale = half_to_float(block.d = finite_half(scale));
  }
  static void set_levels(Block& block, const std::uint8_t* q) {
    if constexpr (kLowest == -16) block.qh = fifth_bits(q);
    pack_nibbles(q, block.qs);
  }
};

/// A type with a min: levels from 0 to kTop.
template <typename Block_, int kTop>
struct WithMin {
  using Block = Block_;
  static constexpr int kFirst = 0;
  static Integers levels() { return {0, kTop}; }
  static Affine search(const Group<kBlock>& group) { return search_affine(group, kTop, Min::any); }
  static void set_scale(Block& block, float& scale, float& min) {
    block.d = finite_half(scale);
    block.m = finite_half(-min);
    scale = half_to_float(block.d);
    min = -half_to_float(block.m);
  }
  static void set_levels(Block& block, const std::uint8_t* q) {
    if constexpr (kTop == 31) block.qh = fifth_bits(q);
    pack_nibbles(q, block.qs);
  }
};

/// Levels of a book become their places in it.
std::uint8_t iq4_place(std::uint8_t from_lowest) {
  static constexpr auto kPlaces = [] {
    std::array<std::uint8_t, 256> places = {};
    for (int i = 0; i < 16; ++i) places[static_cast<std::size_t>(kIq4Codebook[i] + 127)] = static_cast<std::uint8_t>(i);
    return places;
  }();
  return kPlaces[from_lowest];
}

constexpr Ends kIq4Ends = {-127, 113, {0.85f, 0.04f, 8}};

struct Iq4Nl {
  using Block = BlockIQ4_NL;
  static constexpr int kFirst = -127;
  static Iq4Levels levels() { return {}; }
  static Affine search(const Group<kBlock>& group) {
    Affine fit;
    fit.scale = search_scale(group, levels(), kIq4Ends);
    return fit;
  }
  static void set_scale(Block& block, float& scale, float& /*min*/) {
    scale = half_to_float(block.d = finite_half(scale));
  }
  static void set_levels(Block& block, const std::uint8_t* q) {
    std::uint8_t places[kBlock];
    for (int j = 0; j < kBlock; ++j) places[j] = iq4_place(q[j]);
    pack_nibbles(places, block.qs);
  }
};

std::uint8_t mxfp4_place(std::uint8_t from_lowest) {
  const int level = static_cast<int>(from_lowest) - 12, size = std::abs(level);
  const auto* place = std::find(kMxfp4Codebook, kMxfp4Codebook + 8, size);
  return static_cast<std::uint8_t>((place - kMxfp4Codebook) | (level < 0 ? 8 : 0));
}

struct Mxfp4 {
  using Block = BlockMXFP4;
  static constexpr int kFirst = -12;
  static Mxfp4Levels levels() { return {}; }
  // The scale is a power of two: of three around the one at which the largest element is the largest level, the best.
  static Affine search(const Group<kBlock>& group) {
    const Lanes extreme = larger(-group.low, group.high);
    alignas(64) float around[kLanes];
    store_lanes(around, extreme);
    for (float& value : around) value = value > 0 ? std::ldexp(1.0f, std::clamp(std::ilogb(value / 12), -120, 120)) : 0;
    const Lanes middle = load_lanes(around);
    Lanes least = {};
    Affine fit;
    for (const float factor : {0.5f, 1.0f, 2.0f}) {
      const Lanes step = middle * factor;
      const Sums sums = quantize(group, levels(), reciprocal(step), Lanes{});
      const Lanes error = step * (step * sums.qq - 2.0f * sums.xq);
      const auto better = error < least;
      least = better ? error : least;
      fit.scale = better ? step : fit.scale;
    }
    return fit;
  }
  static void set_scale(Block& block, float& scale, float& /*min*/) {
    block.e = scale > 0 ? static_cast<std::uint8_t>(std::ilogb(scale) + 128) : 0;
    scale = scale > 0 ? e8m0_half(block.e) : 0;
  }
  static void set_levels(Block& block, const std::uint8_t* q) {
    std::uint8_t places[kBlock];
    for (int j = 0; j < kBlock; ++j) places[j] = mxfp4_place(q[j]);
    pack_nibbles(places, block.qs);
  }
};

/// Calls body(first, n, groups) for up to kSide sub-blocks at a time: those from number `first` on, `n` of them, whose
/// importances are brought to a mean in blocks of `block` elements.
template <int kElements, typename Body>
void for_each_groups(const float* x, const float* importance, std::int64_t count, int block, const Body& body) {
  Columns<kElements> columns, importances;
  for (std::int64_t first = 0; first < count / kElements; first += kSide) {
    const int n = static_cast<int>(std::min<std::int64_t>(kSide, count / kElements - first));
    load_columns(x + first * kElements, n, columns);
    load_importance(importance == nullptr ? nullptr : importance + first * kElements, n, block, importances);
    body(first, n, groups_of(columns, importances));
  }
}

template <typename Type>
void encode_simple(const float* x, const float* importance, std::int64_t count, std::byte* out) {
  auto* blocks = reinterpret_cast<typename Type::Block*>(out);
  Columns<kBlock> levels;
  for_each_groups<kBlock>(x, importance, count, kBlock, [&](std::int64_t first, int n, const Groups<kBlock>& groups) {
    alignas(64) Side scales, mins;
    for (int g = 0; g < kGroups; ++g) {
      const Affine fit = Type::search(groups[g]);
      store_lanes(&scales[g * kLanes], fit.scale);
      store_lanes(&mins[g * kLanes], fit.min);
    }
    for (int s = 0; s < n; ++s) Type::set_scale(blocks[first + s], scales[s], mins[s]);
    for (int g = 0; g < kGroups; ++g) {
      const Lanes inverse = reciprocal(load_lanes(&scales[g * kLanes]));
      quantize(groups[g], Type::levels(), inverse, load_lanes(&mins[g * kLanes]) * inverse,
               &levels.values[0][g * kLanes]);
    }
    for (int s = 0; s < n; ++s) Type::set_levels(blocks[first + s], level_bytes(levels, s, Type::kFirst).values);
  });
}

// --- NVFP4: a scale of eight bits for every 16, and no other
// ----------------------------------------------------------

/// The code of the UE4M3 number nearest to `scale` and within the finite ones.
int nearest_ue4m3(float scale) {
  if (!(scale > 0)) return 0;
  // As float16, 2^-8 of it: rounded to three bits of the mantissa, it is the code with zeros behind.
  const std::uint32_t half = float_to_half(std::min(scale, 448.0f) * 0x1p-8f);
  return static_cast<int>(std::min<std::uint32_t>((half + 63 + (half >> 7 & 1)) >> 7, 0x7e));
}

/// Scales (halved, as they pair with the doubled levels) of the sub-blocks of a group: of the codes around those at
/// which the largest element is one of the three largest levels, the one that leaves least error.
Lanes search_ue4m3(const Group<16>& group) {
  constexpr int kNear = 2;
  alignas(64) float extremes[kLanes], tried[kLanes];
  store_lanes(extremes, larger(-group.low, group.high));
  Lanes best = {}, least = {};
  for (const float level : {6.0f, 4.0f, 3.0f}) {
    for (int near = -kNear; near <= kNear; ++near) {
      for (int i = 0; i < kLanes; ++i) {
        const int code = std::clamp(nearest_ue4m3(extremes[i] / level) + near, 0, 0x7e);
        tried[i] = ue4m3_half(static_cast<std::uint8_t>(code));
      }
      const Lanes step = load_lanes(tried);
      const Sums sums = quantize(group, Mxfp4Levels{}, reciprocal(step), Lanes{});
      const Lanes error = step * (step * sums.qq - 2.0f * sums.xq);
      const auto better = error < least;
      least = better ? error : least;
      best = better ? step : best;
    }
  }
  return best;
}

void encode_nvfp4(const float* x, const float* importance, std::int64_t count, std::byte* out) {
  constexpr int kSub = kNvfp4Group, kSubs = kNvfp4Block / kSub;
  auto* blocks = reinterpret_cast<BlockNVFP4*>(out);
  Columns<kSub> levels;
  for_each_groups<kSub>(x, importance, count, kNvfp4Block, [&](std::int64_t first, int n, const Groups<kSub>& groups) {
    alignas(64) Side scales;
    for (int g = 0; g < kGroups; ++g) {
      const Lanes scale = search_ue4m3(groups[g]);
      store_lanes(&scales[g * kLanes], scale);
      quantize(groups[g], Mxfp4Levels{}, reciprocal(scale), Lanes{}, &levels.values[0][g * kLanes]);
    }
    for (int s = 0; s < n; ++s) {
      BlockNVFP4& block = blocks[(first + s) / kSubs];
      const int sub = s % kSubs;
      block.d[sub] = static_cast<std::uint8_t>(nearest_ue4m3(2 * scales[s]));
      const auto places = level_bytes(levels, s, -12);
      for (int i = 0; i < 8; ++i) {
        const int low = mxfp4_place(places.values[i]), high = mxfp4_place(places.values[8 + i]);
        block.qs[8 * sub + i] = static_cast<std::uint8_t>(low | high << 4);
      }
    }
  });
}

// --- Super-blocks of 256 with scales of few bits ---------------------------------------------------------------------

/// Calls body(x, importance, super_blocks, out) for so many super-blocks as lie side by side.
template <int kSubBlocks, typename Block, typename Body>
void for_each_side(const float* x, const float* importance, std::int64_t count, std::byte* out, Body body) {
  constexpr int kSupers = kSide / kSubBlocks;
  auto* blocks = reinterpret_cast<Block*>(out);
  const std::int64_t supers = count / kSuperBlock;
  for (std::int64_t first = 0; first < supers; first += kSupers) {
    body(x + first * kSuperBlock, importance == nullptr ? nullptr : importance + first * kSuperBlock,
         static_cast<int>(std::min<std::int64_t>(kSupers, supers - first)), blocks + first);
  }
}

/// What the sub-blocks' levels sum to.
struct SideSums {
  alignas(64) Side q, qq, xq, weight, sum;

  template <int kElements>
  void store(int g, const Sums& sums, const Group<kElements>& group) {
    store_lanes(&q[g * kLanes], sums.q);
    store_lanes(&qq[g * kLanes], sums.qq);
    store_lanes(&xq[g * kLanes], sums.xq);
    store_lanes(&weight[g * kLanes], group.weight);
    store_lanes(&sum[g * kLanes], group.sum);
  }
};

/// d and dmin of a super-block whose sub-blocks are [begin, end), by all their levels; unchanged where the system does
/// not determine them.
void solve_super(const SideSums& sums, const Side& scales, const Side& mins, int begin, int end, float& d,
                 float& dmin) {
  double a11 = 0, a12 = 0, a22 = 0, b1 = 0, b2 = 0;
  for (int s = begin; s < end; ++s) {
    const double scale = scales[s], min = mins[s];
    a11 += scale * scale * sums.qq[s];
    a12 -= scale * min * sums.q[s];
    a22 += min * min * sums.weight[s];
    b1 += scale * sums.xq[s];
    b2 -= min * sums.sum[s];
  }
  const double determinant = a11 * a22 - a12 * a12;
  if (determinant > 1e-9 * a11 * a22) {
    const double found = (b1 * a22 - b2 * a12) / determinant, found_min = (a11 * b2 - a12 * b1) / determinant;
    if (found > 0 && found_min >= 0) {
      d = half_to_float(finite_half(found));
      dmin = half_to_float(finite_half(found_min));
    }
  } else if (a11 > 0 && a22 == 0 && b1 > 0) {
    d = half_to_float(finite_half(b1 / a11));
  }
}

void set_fifth_bits(const std::uint8_t* q, int s, std::uint8_t* qh) {
  for (int i = 0; i < kBlock; ++i) qh[i] = static_cast<std::uint8_t>((s == 0 ? 0 : qh[i]) | (q[i] >> 4) << s);
}

/// Two bits of each of 16 elements, where Q2_K and Q3_K have them: q's low ones into qs.
void set_two_bits(const std::uint8_t* q, int s, std::uint8_t* qs) {
  const int first = 16 * s, h = first / 128, k = first % 128 / 32, shift = 2 * k;
  for (int i = 0; i < 16; ++i) {
    std::uint8_t& byte = qs[32 * h + first % 32 + i];
    byte = static_cast<std::uint8_t>((shift == 0 ? 0 : byte) | (q[i] & 3) << shift);
  }
}

struct Q2K {
  using Block = BlockQ2_K;
  static constexpr int kElements = 16, kTop = 3, kMost = 15;
  static void set_scales(Block& block, const float* scales, const float* mins) {
    for (int s = 0; s < 16; ++s)
      block.scales[s] = static_cast<std::uint8_t>(static_cast<int>(scales[s]) | static_cast<int>(mins[s]) << 4);
  }
  static void set_levels(Block& block, int s, const std::uint8_t* q) { set_two_bits(q, s, block.qs); }
};

void set_six_bit_scales(const float* scales, const float* mins, std::uint8_t* packed) {
  std::uint8_t whole[8], whole_mins[8];
  for (int s = 0; s < 8; ++s) {
    whole[s] = static_cast<std::uint8_t>(scales[s]);
    whole_mins[s] = static_cast<std::uint8_t>(mins[s]);
  }
  pack_scales_k4(whole, whole_mins, packed);
}

/// Of sub-block s the low nibbles of a pair of sub-blocks, or the high ones.
void set_pair_nibbles(const std::uint8_t* q, int s, std::uint8_t* qs) {
  for (int i = 0; i < kBlock; ++i) {
    std::uint8_t& byte = qs[32 * (s / 2) + i];
    byte = static_cast<std::uint8_t>(s % 2 == 0 ? q[i] & 15 : byte | (q[i] & 15) << 4);
  }
}

struct Q4K {
  using Block = BlockQ4_K;
  static constexpr int kElements = 32, kTop = 15, kMost = 63;
  static void set_scales(Block& block, const float* scales, const float* mins) {
    set_six_bit_scales(scales, mins, block.scales);
  }
  static void set_levels(Block& block, int s, const std::uint8_t* q) { set_pair_nibbles(q, s, block.qs); }
};

struct Q5K {
  using Block = BlockQ5_K;
  static constexpr int kElements = 32, kTop = 31, kMost = 63;
  static void set_scales(Block& block, const float* scales, const float* mins) {
    set_six_bit_scales(scales, mins, block.scales);
  }
  static void set_levels(Block& block, int s, const std::uint8_t* q) {
    set_pair_nibbles(q, s, block.qs);
    set_fifth_bits(q, s, block.qh);
  }
};

constexpr int kRounds = 2;  // of choosing scales and solving for d

/// Super-blocks with mins.
template <typename Type>
void encode_affine(const float* x, const float* importance, std::int64_t count, std::byte* out) {
  constexpr int kElements = Type::kElements, kSubs = kSuperBlock / kElements;
  Columns<kElements> columns, importances, levels;
  const auto side = [&](const float* from, const float* weights, int supers, typename Type::Block* blocks) {
    load_columns(from, supers * kSubs, columns);
    load_importance(weights, supers * kSubs, kSuperBlock, importances);
    const Groups<kElements> groups = groups_of(columns, importances);
    alignas(64) Side fits, fit_mins, scales, mins, d = {}, dmin = {};
    for (int g = 0; g < kGroups; ++g) {
      const Affine fit = search_affine(groups[g], Type::kTop, Min::not_negative);
      store_lanes(&fits[g * kLanes], fit.scale);
      store_lanes(&fit_mins[g * kLanes], fit.min);
    }
    for (int p = 0; p < supers; ++p) {
      const int begin = p * kSubs, end = begin + kSubs;
      const float largest = *std::max_element(&fits[begin], &fits[begin] + kSubs);
      const float largest_min = *std::max_element(&fit_mins[begin], &fit_mins[begin] + kSubs);
      std::fill(d.begin() + begin, d.begin() + end, half_to_float(finite_half(largest / Type::kMost)));
      std::fill(dmin.begin() + begin, dmin.begin() + end, half_to_float(finite_half(largest_min / Type::kMost)));
    }
    for (int round = 0; round < kRounds; ++round) {
      SideSums sums;
      for (int g = 0; g < kGroups; ++g) {
        const int at = g * kLanes;
        const AffineChoice choice = choose_affine(groups[g], load_lanes(&fits[at]), load_lanes(&fit_mins[at]),
                                                  Type::kTop, Type::kMost, load_lanes(&d[at]), load_lanes(&dmin[at]));
        store_lanes(&scales[at], choice.scale);
        store_lanes(&mins[at], choice.min);
        sums.store(g, choice.sums, groups[g]);
      }
      for (int p = 0; p < supers; ++p) {
        const int begin = p * kSubs, end = begin + kSubs;
        float one = d[begin], one_min = dmin[begin];
        solve_super(sums, scales, mins, begin, end, one, one_min);
        std::fill(d.begin() + begin, d.begin() + end, one);
        std::fill(dmin.begin() + begin, dmin.begin() + end, one_min);
      }
    }
    for (int g = 0; g < kGroups; ++g) {
      const int at = g * kLanes;
      const Lanes inverse = reciprocal(load_lanes(&d[at]) * load_lanes(&scales[at]));
      quantize(groups[g], Integers(0, Type::kTop), inverse, load_lanes(&dmin[at]) * load_lanes(&mins[at]) * inverse,
               &levels.values[0][at]);
    }
    for (int p = 0; p < supers; ++p) {
      const int begin = p * kSubs;
      blocks[p].d = finite_half(d[begin]);
      blocks[p].dmin = finite_half(dmin[begin]);
      Type::set_scales(blocks[p], &scales[begin], &mins[begin]);
      for (int s = 0; s < kSubs; ++s) Type::set_levels(blocks[p], s, level_bytes(levels, begin + s, 0).values);
    }
  };
  for_each_side<kSubs, typename Type::Block>(x, importance, count, out, side);
}

struct Q3K {
  using Block = BlockQ3_K;
  static constexpr int kElements = 16, kFirst = -4, kLowestScale = -32, kHighestScale = 31;
  static Integers levels() { return {-4, 3}; }
  static constexpr Ends kEnds = {-4, 3, {0.80f, 0.05f, 9}};
  static void set_scales(Block& block, const float* scales) {
    std::uint8_t packed[12] = {};
    for (int s = 0; s < 16; ++s) {
      const int value = static_cast<int>(scales[s]) + 32;
      packed[s % 8] |= static_cast<std::uint8_t>((value & 15) << (s < 8 ? 0 : 4));
      packed[8 + s % 4] |= static_cast<std::uint8_t>((value >> 4) << (2 * (s / 4)));
    }
    std::copy(std::begin(packed), std::end(packed), block.scales);
  }
  static void set_levels(Block& block, int s, const std::uint8_t* q) {
    set_two_bits(q, s, block.qs);
    const int n = s / 2;
    for (int i = 0; i < 16; ++i) {
      std::uint8_t& byte = block.hmask[16 * (s % 2) + i];
      byte = static_cast<std::uint8_t>((n == 0 ? 0 : byte) | (q[i] >> 2) << n);
    }
  }
};

struct Q6K {
  using Block = BlockQ6_K;
  static constexpr int kElements = 16, kFirst = -32, kLowestScale = -128, kHighestScale = 127;
  static Integers levels() { return {-32, 31}; }
  static constexpr Ends kEnds = {-32, 0, {0.953f, 0.0094f, 11}};
  static void set_scales(Block& block, const float* scales) {
    for (int s = 0; s < 16; ++s) block.scales[s] = static_cast<std::int8_t>(scales[s]);
  }
  static void set_levels(Block& block, int s, const std::uint8_t* q) {
    const int h = s / 8, part = s % 8 / 2, first = 16 * (s % 2);
    for (int i = 0; i < 16; ++i) {
      std::uint8_t& low = block.ql[64 * h + 32 * (part % 2) + first + i];
      low = static_cast<std::uint8_t>(part < 2 ? q[i] & 15 : low | (q[i] & 15) << 4);
      std::uint8_t& high = block.qh[32 * h + first + i];
      high = static_cast<std::uint8_t>((part == 0 ? 0 : high) | (q[i] >> 4) << (2 * part));
    }
  }
};

struct Iq4Xs {
  using Block = BlockIQ4_XS;
  static constexpr int kElements = 32, kFirst = -127, kLowestScale = -32, kHighestScale = 31;
  static Iq4Levels levels() { return {}; }
  static constexpr Ends kEnds = kIq4Ends;
  static void set_scales(Block& block, const float* scales) {
    unsigned high = 0;
    for (int s = 0; s < 8; ++s) {
      const int value = static_cast<int>(scales[s]) + 32;
      std::uint8_t& low = block.scales_l[s / 2];
      low = static_cast<std::uint8_t>(s % 2 == 0 ? value & 15 : low | (value & 15) << 4);
      high |= static_cast<unsigned>(value >> 4) << (2 * s);
    }
    block.scales_h = static_cast<std::uint16_t>(high);
  }
  static void set_levels(Block& block, int s, const std::uint8_t* q) {
    std::uint8_t places[kBlock];
    for (int j = 0; j < kBlock; ++j) places[j] = iq4_place(q[j]);
    pack_nibbles(places, block.qs + 16 * s);
  }
};

/// Super-blocks without mins, whose scales have either sign.
template <typename Type>
void encode_signed(const float* x, const float* importance, std::int64_t count, std::byte* out) {
  constexpr int kElements = Type::kElements, kSubs = kSuperBlock / kElements;
  Columns<kElements> columns, importances, levels;
  const auto side = [&](const float* from, const float* weights, int supers, typename Type::Block* blocks) {
    load_columns(from, supers * kSubs, columns);
    load_importance(weights, supers * kSubs, kSuperBlock, importances);
    const Groups<kElements> groups = groups_of(columns, importances);
    alignas(64) Side fits, scales, d = {};
    for (int g = 0; g < kGroups; ++g)
      store_lanes(&fits[g * kLanes], search_scale(groups[g], Type::levels(), Type::kEnds));
    for (int p = 0; p < supers; ++p) {
      const int begin = p * kSubs, end = begin + kSubs;
      const float extreme = *std::max_element(&fits[begin], &fits[begin] + kSubs,
                                              [](float a, float b) { return std::fabs(a) < std::fabs(b); });
      // The longer side of the scales goes to the largest.
      std::fill(d.begin() + begin, d.begin() + end, half_to_float(finite_half(extreme / Type::kLowestScale)));
    }
    for (int round = 0; round < kRounds; ++round) {
      SideSums sums;
      for (int g = 0; g < kGroups; ++g) {
        const int at = g * kLanes;
        const ScaleChoice choice = choose_scale(groups[g], load_lanes(&fits[at]), Type::levels(), Type::kLowestScale,
                                                Type::kHighestScale, load_lanes(&d[at]));
        store_lanes(&scales[at], choice.scale);
        sums.store(g, choice.sums, groups[g]);
      }
      for (int p = 0; p < supers; ++p) {
        const int begin = p * kSubs, end = begin + kSubs;
        double squares = 0, product = 0;
        for (int s = begin; s < end; ++s) {
          squares += static_cast<double>(scales[s]) * scales[s] * sums.qq[s];
          product += static_cast<double>(scales[s]) * sums.xq[s];
        }
        if (squares > 0) std::fill(d.begin() + begin, d.begin() + end, half_to_float(finite_half(product / squares)));
      }
    }
    for (int g = 0; g < kGroups; ++g) {
      const int at = g * kLanes;
      quantize(groups[g], Type::levels(), reciprocal(load_lanes(&d[at]) * load_lanes(&scales[at])), Lanes{},
               &levels.values[0][at]);
    }
    for (int p = 0; p < supers; ++p) {
      const int begin = p * kSubs;
      blocks[p].d = finite_half(d[begin]);
      Type::set_scales(blocks[p], &scales[begin]);
      for (int s = 0; s < kSubs; ++s)
        Type::set_levels(blocks[p], s, level_bytes(levels, begin + s, Type::kFirst).values);
    }
  };
  for_each_side<kSubs, typename Type::Block>(x, importance, count, out, side);
}

void encode_any(DType dtype, const float* x, const float* importance, std::int64_t count, std::byte* out) {
  switch (dtype) {
    case DType::q4_0:
      return encode_simple<Symmetric<BlockQ4_0, -8>>(x, importance, count, out);
    case DType::q4_1:
      return encode_simple<WithMin<BlockQ4_1, 15>>(x, importance, count, out);
    case DType::q5_0:
      return encode_simple<Symmetric<BlockQ5_0, -16>>(x, importance, count, out);
    case DType::q5_1:
      return encode_simple<WithMin<BlockQ5_1, 31>>(x, importance, count, out);
    case DType::iq4_nl:
      return encode_simple<Iq4Nl>(x, importance, count, out);
    case DType::mxfp4:
      return encode_simple<Mxfp4>(x, importance, count, out);
    case DType::nvfp4:
      return encode_nvfp4(x, importance, count, out);
    case DType::q1_0:
      return encode_fields<BlockQ1_0, kBlockQ1_0>(x, importance, count, out);
    case DType::q2_0:
      return encode_fields<BlockQ2_0, kBlockQ2_0>(x, importance, count, out);
    case DType::q2_k:
      return encode_affine<Q2K>(x, importance, count, out);
    case DType::q4_k:
      return encode_affine<Q4K>(x, importance, count, out);
    case DType::q5_k:
      return encode_affine<Q5K>(x, importance, count, out);
    case DType::q3_k:
      return encode_signed<Q3K>(x, importance, count, out);
    case DType::q6_k:
      return encode_signed<Q6K>(x, importance, count, out);
    case DType::iq4_xs:
      return encode_signed<Iq4Xs>(x, importance, count, out);
    case DType::iq2_xxs:
      return encode_on_grid<Iq2Xxs>(x, importance, count, out);
    case DType::iq2_xs:
      return encode_on_grid<Iq2Xs>(x, importance, count, out);
    case DType::iq2_s:
      return encode_on_grid<Iq2S>(x, importance, count, out);
    case DType::iq3_xxs:
      return encode_on_grid<Iq3Xxs>(x, importance, count, out);
    case DType::iq3_s:
      return encode_on_grid<Iq3S>(x, importance, count, out);
    case DType::iq1_s:
      return encode_on_grid<Iq1S>(x, importance, count, out);
    case DType::iq1_m:
      return encode_on_grid<Iq1M>(x, importance, count, out);
    case DType::tq1_0:
      return encode_ternary<BlockTQ1_0>(x, importance, count, out);
    case DType::tq2_0:
      return encode_ternary<BlockTQ2_0>(x, importance, count, out);
    default:
      return;  // encode_row() encodes them
  }
}

}  // namespace
}  // namespace millrace

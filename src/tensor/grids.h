// Weights of one to three bits whose values lie on a grid, and ternary ones: what their blocks decode to, as the
// kernels want it. A block's weight is step * scale * value, all exact: value is a small integer, scale a small odd one
// (or 1), step a float. Layouts: tensor/blocks.h; the grids' points: tensor/grid_points.h.
//
// A Grid<Block> has
//   kOffset, kMost     values are in -kOffset .. kMost - kOffset; they come with kOffset added, as bytes
//   kHalves            each 16 weights have a scale of their own; otherwise each 32
//   bytes(block, p, out)   the 32 values of part p (< 8)
//   scale(block, s)    of weights 16 s on, s < 16
//   d(block), kStep    step is the float16 d times kStep
// Everything is inlined, because files built for one instruction set must lend no code to others. Thread-safety: pure
// functions and constants.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tensor/blocks.h"
#include "tensor/grid_points.h"

namespace millrace {

#define MR_INLINE static inline __attribute__((always_inline))

/// A plain array, so that reading it calls nothing.
template <typename Word, std::size_t kCount>
struct GridTable {
  Word at[kCount];
};

/// The points of a grid in order: `levels[digit]` a byte, weight j in byte j.
template <typename Word, std::size_t kCount, std::size_t kWords, std::size_t kLevels>
constexpr GridTable<Word, kCount> grid_of(const std::array<std::uint64_t, kWords>& points,
                                          const std::array<std::uint8_t, kLevels>& levels) {
  GridTable<Word, kCount> grid{};
  std::size_t rank = 0;
  for (std::size_t w = 0; w < kWords; ++w) {
    for (std::uint64_t bits = points[w]; bits != 0; bits &= bits - 1) {
      std::size_t number = 64 * w + static_cast<std::size_t>(std::countr_zero(bits));
      Word point = 0;
      for (std::size_t j = 0; j < sizeof(Word); ++j, number /= kLevels) {
        point |= static_cast<Word>(static_cast<Word>(levels[number % kLevels]) << (8 * j));
      }
      grid.at[rank++] = point;
    }
  }
  return grid;
}

inline constexpr std::array<std::uint8_t, 3> kIq2Levels = {8, 25, 43};
inline constexpr std::array<std::uint8_t, 8> kIq3XxsLevels = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr std::array<std::uint8_t, 8> kIq3SLevels = {1, 3, 5, 7, 9, 11, 13, 15};
/// Eight times the level, plus 8: an eighth is what IQ1 adds to or takes from all of a group.
inline constexpr std::array<std::uint8_t, 3> kIq1Levels = {0, 8, 16};

inline constexpr auto kIq2XxsGrid = grid_of<std::uint64_t, 256>(kIq2XxsPoints, kIq2Levels);
inline constexpr auto kIq2XsGrid = grid_of<std::uint64_t, 512>(kIq2XsPoints, kIq2Levels);
inline constexpr auto kIq2SGrid = grid_of<std::uint64_t, 1024>(kIq2SPoints, kIq2Levels);
inline constexpr auto kIq1Grid = grid_of<std::uint64_t, 2048>(kIq1Points, kIq1Levels);
inline constexpr auto kIq3XxsGrid = grid_of<std::uint32_t, 256>(kIq3XxsPoints, kIq3XxsLevels);
inline constexpr auto kIq3SGrid = grid_of<std::uint32_t, 512>(kIq3SPoints, kIq3SLevels);

/// Eight signs from the seven that are stored: the eighth makes the number of minuses even.
constexpr unsigned eight_signs(unsigned seven) { return seven | static_cast<unsigned>(std::popcount(seven) & 1) << 7; }

/// 0xff in byte j where bit j of eight is set.
constexpr GridTable<std::uint64_t, 256> byte_masks() {
  GridTable<std::uint64_t, 256> masks{};
  for (std::size_t i = 0; i < 256; ++i) {
    for (std::size_t j = 0; j < 8; ++j) masks.at[i] |= (i >> j & 1) != 0 ? std::uint64_t{0xff} << (8 * j) : 0;
  }
  return masks;
}
inline constexpr auto kByteMasks = byte_masks();

/// offset + value of eight weights, where `signs` has a bit for each that is negative. REQUIRES: no value is larger
/// than the offset, so that no byte borrows from the next.
template <int kOffset>
MR_INLINE void put_signed(std::uint64_t values, unsigned signs, std::uint8_t* out) {
  const std::uint64_t bytes = values + 0x0101010101010101ULL * kOffset - 2 * (values & kByteMasks.at[signs]);
  std::memcpy(out, &bytes, sizeof bytes);
}

template <typename Block>
struct Grid;

template <>
struct Grid<BlockIQ2_XXS> {
  static constexpr int kOffset = 43, kMost = 86;
  static constexpr bool kHalves = false;
  MR_INLINE void bytes(const BlockIQ2_XXS& block, int p, std::uint8_t* out) {
    const std::uint32_t packed = block.parts[p].signs_and_scale;
    for (int l = 0; l < 4; ++l) {
      put_signed<kOffset>(kIq2XxsGrid.at[block.parts[p].points[l]], eight_signs(packed >> (7 * l) & 127), out + 8 * l);
    }
  }
  MR_INLINE int scale(const BlockIQ2_XXS& block, int s) {
    return static_cast<int>(2 * (block.parts[s / 2].signs_and_scale >> 28) + 1);
  }
  static constexpr float kStep = 0.125F;
  MR_INLINE std::uint16_t d(const BlockIQ2_XXS& block) { return block.d; }
};

template <>
struct Grid<BlockIQ2_XS> {
  static constexpr int kOffset = 43, kMost = 86;
  static constexpr bool kHalves = true;
  MR_INLINE void bytes(const BlockIQ2_XS& block, int p, std::uint8_t* out) {
    for (int l = 0; l < 4; ++l) {
      const unsigned q = block.qs[4 * p + l];
      put_signed<kOffset>(kIq2XsGrid.at[q & 511], eight_signs(q >> 9), out + 8 * l);
    }
  }
  MR_INLINE int scale(const BlockIQ2_XS& block, int s) { return 2 * (block.scales[s / 2] >> (4 * (s % 2)) & 15) + 1; }
  static constexpr float kStep = 0.125F;
  MR_INLINE std::uint16_t d(const BlockIQ2_XS& block) { return block.d; }
};

template <>
struct Grid<BlockIQ2_S> {
  static constexpr int kOffset = 43, kMost = 86;
  static constexpr bool kHalves = true;
  MR_INLINE void bytes(const BlockIQ2_S& block, int p, std::uint8_t* out) {
    for (int l = 0; l < 4; ++l) {
      const unsigned high = block.qh[p] >> (2 * l) & 3U;
      put_signed<kOffset>(kIq2SGrid.at[block.qs[4 * p + l] | high << 8], block.signs[4 * p + l], out + 8 * l);
    }
  }
  MR_INLINE int scale(const BlockIQ2_S& block, int s) { return 2 * (block.scales[s / 2] >> (4 * (s % 2)) & 15) + 1; }
  static constexpr float kStep = 0.125F;
  MR_INLINE std::uint16_t d(const BlockIQ2_S& block) { return block.d; }
};

template <>
struct Grid<BlockIQ3_XXS> {
  static constexpr int kOffset = 62, kMost = 124;
  static constexpr bool kHalves = false;
  MR_INLINE void bytes(const BlockIQ3_XXS& block, int p, std::uint8_t* out) {
    const std::uint32_t packed = block.signs_and_scales[p];
    for (int l = 0; l < 4; ++l) {
      const std::uint64_t low = kIq3XxsGrid.at[block.qs[8 * p + 2 * l]],
                          high = kIq3XxsGrid.at[block.qs[8 * p + 2 * l + 1]];
      put_signed<kOffset>(low | high << 32, eight_signs(packed >> (7 * l) & 127), out + 8 * l);
    }
  }
  MR_INLINE int scale(const BlockIQ3_XXS& block, int s) {
    return static_cast<int>(2 * (block.signs_and_scales[s / 2] >> 28) + 1);
  }
  static constexpr float kStep = 0.25F;
  MR_INLINE std::uint16_t d(const BlockIQ3_XXS& block) { return block.d; }
};

template <>
struct Grid<BlockIQ3_S> {
  static constexpr int kOffset = 15, kMost = 30;
  static constexpr bool kHalves = false;
  MR_INLINE void bytes(const BlockIQ3_S& block, int p, std::uint8_t* out) {
    const auto point = [&](int i) {
      return std::uint64_t{kIq3SGrid.at[block.qs[8 * p + i] | (block.qh[p] >> i & 1U) << 8]};
    };
    for (int l = 0; l < 4; ++l) {
      put_signed<kOffset>(point(2 * l) | point(2 * l + 1) << 32, block.signs[4 * p + l], out + 8 * l);
    }
  }
  MR_INLINE int scale(const BlockIQ3_S& block, int s) {
    return 2 * (block.scales[s / 4] >> (4 * (s / 2 % 2)) & 15) + 1;
  }
  static constexpr float kStep = 1;
  MR_INLINE std::uint16_t d(const BlockIQ3_S& block) { return block.d; }
};

/// Eight IQ1 weights: eight times their level, plus or minus one.
template <int kOffset>
MR_INLINE void put_shifted(std::uint64_t point, bool minus, std::uint8_t* out) {
  static_assert(kOffset == 9);
  const std::uint64_t bytes = point + (minus ? 0 : 0x0202020202020202ULL);
  std::memcpy(out, &bytes, sizeof bytes);
}

template <>
struct Grid<BlockIQ1_S> {
  static constexpr int kOffset = 9, kMost = 18;
  static constexpr bool kHalves = false;
  MR_INLINE void bytes(const BlockIQ1_S& block, int p, std::uint8_t* out) {
    const unsigned high = block.qh[p];
    for (int l = 0; l < 4; ++l) {
      const std::uint64_t point = kIq1Grid.at[block.qs[4 * p + l] | (high >> (3 * l) & 7) << 8];
      put_shifted<kOffset>(point, (high & 0x8000) != 0, out + 8 * l);
    }
  }
  MR_INLINE int scale(const BlockIQ1_S& block, int s) { return 2 * (block.qh[s / 2] >> 12 & 7) + 1; }
  static constexpr float kStep = 0.125F;
  MR_INLINE std::uint16_t d(const BlockIQ1_S& block) { return block.d; }
};

template <>
struct Grid<BlockIQ1_M> {
  static constexpr int kOffset = 9, kMost = 18;
  static constexpr bool kHalves = true;
  MR_INLINE void bytes(const BlockIQ1_M& block, int p, std::uint8_t* out) {
    for (int l = 0; l < 4; ++l) {
      const unsigned high = block.qh[2 * p + l / 2] >> (4 * (l % 2)) & 15U;
      put_shifted<kOffset>(kIq1Grid.at[block.qs[4 * p + l] | (high & 7) << 8], (high & 8) != 0, out + 8 * l);
    }
  }
  MR_INLINE int scale(const BlockIQ1_M& block, int s) { return 2 * (block.scales[s / 4] >> (3 * (s % 4)) & 7) + 1; }
  static constexpr float kStep = 0.125F;
  MR_INLINE std::uint16_t d(const BlockIQ1_M& block) { return iq1_m_d(block); }
};

template <>
struct Grid<BlockTQ1_0> {
  static constexpr int kOffset = 1, kMost = 2;
  static constexpr bool kHalves = false;
  /// Digit n of `count` bytes.
  MR_INLINE void digits(const std::uint8_t* bytes, int count, int n, std::uint8_t* out) {
    constexpr unsigned kPower[5] = {1, 3, 9, 27, 81};
    for (int i = 0; i < count; ++i) out[i] = static_cast<std::uint8_t>((bytes[i] * kPower[n] & 255) * 3 >> 8);
  }
  MR_INLINE void bytes(const BlockTQ1_0& block, int p, std::uint8_t* out) {
    if (p < 5) return digits(block.qs, 32, p, out);
    digits(block.qs + 32, 16, 2 * p - 10, out);
    if (p < 7) return digits(block.qs + 32, 16, 2 * p - 9, out + 16);
    for (int n = 0; n < 4; ++n) digits(block.qh, 4, n, out + 16 + 4 * n);
  }
  MR_INLINE int scale(const BlockTQ1_0&, int) { return 1; }
  static constexpr float kStep = 1;
  MR_INLINE std::uint16_t d(const BlockTQ1_0& block) { return block.d; }
};

template <>
struct Grid<BlockTQ2_0> {
  static constexpr int kOffset = 1, kMost = 3;
  static constexpr bool kHalves = false;
  MR_INLINE void bytes(const BlockTQ2_0& block, int p, std::uint8_t* out) {
    const std::uint8_t* qs = block.qs + 32 * (p / 4);
    for (int i = 0; i < 32; ++i) out[i] = qs[i] >> (2 * (p % 4)) & 3;
  }
  MR_INLINE int scale(const BlockTQ2_0&, int) { return 1; }
  static constexpr float kStep = 1;
  MR_INLINE std::uint16_t d(const BlockTQ2_0& block) { return block.d; }
};

#undef MR_INLINE

}  // namespace millrace

// Decoding of weights on a grid, and of ternary ones, four at a time (formats: tensor/blocks.h, tensor/grids.h): one
// struct a dtype, which the decoders of all products share, however they read a segment.
//
// A GridWords<dtype> has
//   kBlockBytes, kGroup   of a super-block; weights that share a scale
//   kOffset               to subtract from each byte of four()
//   kSigned               bytes of four() are signed (and kOffset is 0)
//   four(bytes, b, i)     weights 4 i .. 4 i + 3 (i < 8) of block b (< 8) of 32
//   scale(bytes, g)       of scale group g
//   kPoints, points()     of a grid: its points as words in global memory; 0: there is none
// `bytes` is read by bytes4(bytes, offset), byte_at(bytes, offset) and half_at(bytes, offset). Where it has a member
// `points`, a copy of the grid's in shared memory, they are looked up there: 32 lanes that read 32 places of global
// memory take turns, whatever cache answers.
#pragma once

#include <cuda_fp16.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "tensor/dtype.h"
#include "tensor/grids.h"

namespace millrace::kernels::cuda {

/// Points of eight weights: the number of weight j's level in nibble j, as prmt selects bytes.
template <std::size_t kCount, std::size_t kLevels>
constexpr GridTable<std::uint32_t, kCount> level_numbers(const GridTable<std::uint64_t, kCount>& grid,
                                                         const std::array<std::uint8_t, kLevels>& levels) {
  GridTable<std::uint32_t, kCount> numbers{};
  for (std::size_t i = 0; i < kCount; ++i) {
    for (std::size_t j = 0; j < 8; ++j) {
      for (std::size_t level = 0; level < kLevels; ++level) {
        if ((grid.at[i] >> (8 * j) & 255) == levels[level])
          numbers.at[i] |= static_cast<std::uint32_t>(level) << (4 * j);
      }
    }
  }
  return numbers;
}

// A copy for each file that reads one.
static __device__ constexpr auto kIq2XxsWords = level_numbers(kIq2XxsGrid, kIq2Levels);
static __device__ constexpr auto kIq2XsWords = level_numbers(kIq2XsGrid, kIq2Levels);
static __device__ constexpr auto kIq2SWords = level_numbers(kIq2SGrid, kIq2Levels);
static __device__ constexpr auto kIq1Words = level_numbers(kIq1Grid, kIq1Levels);
static __device__ constexpr auto kIq3XxsWords = kIq3XxsGrid;
static __device__ constexpr auto kIq3SWords = kIq3SGrid;

/// Grid's point `number`.
template <typename Grid, typename B>
__device__ __forceinline__ std::uint32_t point_at(B& bytes, std::uint32_t number) {
  if constexpr (requires { bytes.points; }) {
    return bytes.points[number];
  } else {
    return __ldg(Grid::points() + number);
  }
}

/// Levels of a grid as bytes, and negated.
template <std::size_t kLevels>
constexpr std::uint32_t level_bytes(const std::array<std::uint8_t, kLevels>& levels, int sign) {
  std::uint32_t bytes = 0;
  for (std::size_t i = 0; i < kLevels; ++i) bytes |= (static_cast<std::uint32_t>(sign * levels[i]) & 255) << (8 * i);
  return bytes;
}
constexpr std::uint32_t kIq2Plus = level_bytes(kIq2Levels, 1), kIq2Minus = level_bytes(kIq2Levels, -1);
constexpr std::uint32_t kIq1Lower = level_bytes(kIq1Levels, 1), kIq1Higher = kIq1Lower + 0x00020202u;

/// Half 0 or 1 of an IQ2 point whose weights have a bit of `signs` where they are negative.
__device__ __forceinline__ std::uint32_t half_of_iq2(std::uint32_t point, std::uint32_t signs, int half) {
  std::uint32_t spread = (signs | signs << 12) & 0x000f000fu;  // bit j to nibble j
  spread = (spread | spread << 6) & 0x03030303u;
  spread = (spread | spread << 3) & 0x11111111u;
  return __byte_perm(kIq2Plus, kIq2Minus, (point | spread << 2) >> (16 * half));
}

/// Half 0 or 1 of an IQ1 point, each weight an eighth lower where `lower`: eight times that, plus 9.
__device__ __forceinline__ std::uint32_t half_of_iq1(std::uint32_t point, bool lower, int half) {
  return __byte_perm(lower ? kIq1Lower : kIq1Higher, 0, point >> (16 * half));
}

__device__ __forceinline__ std::uint32_t all_signs(std::uint32_t seven) {
  return seven | (static_cast<std::uint32_t>(__popc(seven)) & 1) << 7;
}

/// Four bytes above 0, those with a bit of `signs` (four bits) negated.
__device__ __forceinline__ std::uint32_t with_signs(std::uint32_t bytes, std::uint32_t signs) {
  const std::uint32_t ones = ((signs & 15) * 0x00204081u) & 0x01010101u;
  return (bytes ^ ones * 255) + ones;
}

struct SignedGrid {
  static constexpr int kOffset = 0, kGroup = 32;
  static constexpr bool kSigned = true;
};
struct OffsetGrid {
  static constexpr int kGroup = 32;
  static constexpr bool kSigned = false;
};

__device__ __forceinline__ float odd_scale(float step, std::uint32_t s) { return step * static_cast<float>(2 * s + 1); }

template <DType>
struct GridWords;

template <>
struct GridWords<DType::iq2_xxs> : SignedGrid {
  static constexpr int kBlockBytes = sizeof(BlockIQ2_XXS);
  static constexpr int kPoints = std::size(kIq2XxsWords.at);
  __device__ static const std::uint32_t* points() { return kIq2XxsWords.at; }
  template <typename B>
  __device__ static std::uint32_t four(B& bytes, int b, int i) {
    const std::uint32_t signs = all_signs(bytes4(bytes, 6 + 8 * b) >> (7 * (i / 2)) & 127);
    return half_of_iq2(point_at<GridWords>(bytes, byte_at(bytes, 2 + 8 * b + i / 2)), signs, i % 2);
  }
  template <typename B>
  __device__ static float scale(B& bytes, int g) {
    return odd_scale(half_at(bytes, 0) * 0.125F, byte_at(bytes, 9 + 8 * g) >> 4);
  }
};

/// IQ2_XS and IQ2_S: a nibble for each 16 weights, from byte kScales on.
template <int kScales>
struct NibbleScales : SignedGrid {
  static constexpr int kGroup = 16;
  template <typename B>
  __device__ static float scale(B& bytes, int g) {
    return odd_scale(half_at(bytes, 0) * 0.125F, byte_at(bytes, kScales + g / 2) >> (4 * (g % 2)) & 15);
  }
};

template <>
struct GridWords<DType::iq2_xs> : NibbleScales<offsetof(BlockIQ2_XS, scales)> {
  static constexpr int kBlockBytes = sizeof(BlockIQ2_XS);
  static constexpr int kPoints = std::size(kIq2XsWords.at);
  __device__ static const std::uint32_t* points() { return kIq2XsWords.at; }
  template <typename B>
  __device__ static std::uint32_t four(B& bytes, int b, int i) {
    const std::uint32_t q = bytes4(bytes, 2 + 8 * b + 4 * (i / 4)) >> (16 * (i / 2 % 2)) & 0xffff;
    return half_of_iq2(point_at<GridWords>(bytes, q & 511), all_signs(q >> 9), i % 2);
  }
};

template <>
struct GridWords<DType::iq2_s> : NibbleScales<offsetof(BlockIQ2_S, scales)> {
  static constexpr int kBlockBytes = sizeof(BlockIQ2_S);
  static constexpr int kPoints = std::size(kIq2SWords.at);
  __device__ static const std::uint32_t* points() { return kIq2SWords.at; }
  template <typename B>
  __device__ static std::uint32_t four(B& bytes, int b, int i) {
    const int l = 4 * b + i / 2;
    const std::uint32_t high = byte_at(bytes, offsetof(BlockIQ2_S, qh) + b) >> (i / 2 * 2) & 3;
    const std::uint32_t point = byte_at(bytes, offsetof(BlockIQ2_S, qs) + l) | high << 8;
    return half_of_iq2(point_at<GridWords>(bytes, point), byte_at(bytes, offsetof(BlockIQ2_S, signs) + l), i % 2);
  }
};

template <>
struct GridWords<DType::iq3_xxs> : SignedGrid {
  static constexpr int kBlockBytes = sizeof(BlockIQ3_XXS);
  static constexpr int kPoints = std::size(kIq3XxsWords.at);
  __device__ static const std::uint32_t* points() { return kIq3XxsWords.at; }
  template <typename B>
  __device__ static std::uint32_t four(B& bytes, int b, int i) {
    const std::uint32_t signs = all_signs(bytes4(bytes, 66 + 4 * b) >> (7 * (i / 2)) & 127);
    return with_signs(point_at<GridWords>(bytes, byte_at(bytes, 2 + 8 * b + i)), signs >> (4 * (i % 2)));
  }
  template <typename B>
  __device__ static float scale(B& bytes, int g) {
    return odd_scale(half_at(bytes, 0) * 0.25F, byte_at(bytes, 69 + 4 * g) >> 4);
  }
};

template <>
struct GridWords<DType::iq3_s> : SignedGrid {
  static constexpr int kBlockBytes = sizeof(BlockIQ3_S);
  static constexpr int kPoints = std::size(kIq3SWords.at);
  __device__ static const std::uint32_t* points() { return kIq3SWords.at; }
  template <typename B>
  __device__ static std::uint32_t four(B& bytes, int b, int i) {
    const std::uint32_t ninth = byte_at(bytes, offsetof(BlockIQ3_S, qh) + b) >> i & 1;
    const std::uint32_t point = byte_at(bytes, offsetof(BlockIQ3_S, qs) + 8 * b + i) | ninth << 8;
    return with_signs(point_at<GridWords>(bytes, point),
                      byte_at(bytes, offsetof(BlockIQ3_S, signs) + 4 * b + i / 2) >> (4 * (i % 2)));
  }
  template <typename B>
  __device__ static float scale(B& bytes, int g) {
    return odd_scale(half_at(bytes, 0), byte_at(bytes, offsetof(BlockIQ3_S, scales) + g / 2) >> (4 * (g % 2)) & 15);
  }
};

template <>
struct GridWords<DType::iq1_s> : OffsetGrid {
  static constexpr int kBlockBytes = sizeof(BlockIQ1_S), kOffset = 9;
  static constexpr int kPoints = std::size(kIq1Words.at);
  __device__ static const std::uint32_t* points() { return kIq1Words.at; }
  template <typename B>
  __device__ static std::uint32_t four(B& bytes, int b, int i) {
    const std::uint32_t high = bytes4(bytes, offsetof(BlockIQ1_S, qh) + 4 * (b / 2)) >> (16 * (b % 2));
    const std::uint32_t low = byte_at(bytes, offsetof(BlockIQ1_S, qs) + 4 * b + i / 2);
    const std::uint32_t point = point_at<GridWords>(bytes, low | (high >> (3 * (i / 2)) & 7) << 8);
    return half_of_iq1(point, (high & 0x8000) != 0, i % 2);
  }
  template <typename B>
  __device__ static float scale(B& bytes, int g) {
    return odd_scale(half_at(bytes, 0) * 0.125F, byte_at(bytes, offsetof(BlockIQ1_S, qh) + 2 * g + 1) >> 4 & 7);
  }
};

template <>
struct GridWords<DType::iq1_m> : OffsetGrid {
  static constexpr int kBlockBytes = sizeof(BlockIQ1_M), kOffset = 9, kGroup = 16;
  static constexpr int kPoints = std::size(kIq1Words.at);
  __device__ static const std::uint32_t* points() { return kIq1Words.at; }
  template <typename B>
  __device__ static std::uint32_t four(B& bytes, int b, int i) {
    const std::uint32_t high = byte_at(bytes, offsetof(BlockIQ1_M, qh) + 2 * b + i / 4) >> (4 * (i / 2 % 2));
    const std::uint32_t low = byte_at(bytes, offsetof(BlockIQ1_M, qs) + 4 * b + i / 2);
    return half_of_iq1(point_at<GridWords>(bytes, low | (high & 7) << 8), (high & 8) != 0, i % 2);
  }
  template <typename B>
  __device__ static float scale(B& bytes, int g) {
    constexpr int kAt = offsetof(BlockIQ1_M, scales);
    const std::uint32_t first = bytes4(bytes, kAt), second = bytes4(bytes, kAt + 4);
    const std::uint32_t d = (first >> 12 & 15) | (first >> 28 << 4) | (second >> 12 & 15) << 8 | (second >> 28 << 12);
    const std::uint32_t s = (g < 8 ? first : second) >> (16 * (g / 4 % 2) + 3 * (g % 4)) & 7;
    return odd_scale(__half2float(__ushort_as_half(static_cast<unsigned short>(d))) * 0.125F, s);
  }
};

template <>
struct GridWords<DType::tq1_0> : OffsetGrid {
  static constexpr int kBlockBytes = sizeof(BlockTQ1_0), kOffset = 1, kPoints = 0;
  template <typename B>
  __device__ static std::uint32_t four(B& bytes, int b, int i) {
    if (b < 5) return digits(bytes4(bytes, 4 * i), b);
    if (b < 7) return digits(bytes4(bytes, 32 + 4 * (i % 4)), 2 * b - 10 + i / 4);
    return i < 4 ? digits(bytes4(bytes, 32 + 4 * i), 4) : digits(bytes4(bytes, 48), i - 4);
  }
  template <typename B>
  __device__ static float scale(B& bytes, int) {
    return half_at(bytes, offsetof(BlockTQ1_0, d));
  }

 private:
  /// Digit n of four bytes.
  __device__ static std::uint32_t digits(std::uint32_t four, int n) {
    const std::uint32_t power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    const auto of_two = [power](std::uint32_t two) { return ((two * power & 0x00ff00ffu) * 3) >> 8 & 0x00ff00ffu; };
    return of_two(four & 0x00ff00ffu) | of_two(four >> 8 & 0x00ff00ffu) << 8;
  }
};

template <>
struct GridWords<DType::tq2_0> : OffsetGrid {
  static constexpr int kBlockBytes = sizeof(BlockTQ2_0), kOffset = 1, kPoints = 0;
  template <typename B>
  __device__ static std::uint32_t four(B& bytes, int b, int i) {
    return bytes4(bytes, 32 * (b / 4) + 4 * i) >> (2 * (b % 4)) & 0x03030303u;
  }
  template <typename B>
  __device__ static float scale(B& bytes, int) {
    return half_at(bytes, offsetof(BlockTQ2_0, d));
  }
};

}  // namespace millrace::kernels::cuda

// Decoding of quantized weights to the int8 that integer tensor cores take, and of their scales: one struct a dtype, so
// that one kernel template serves all. Layouts: tensor/blocks.h.
//
// A segment is kSegment = 256 elements of a row as they lie in the file: eight blocks of 32 (or one super-block). It
// may lie in shared or global memory, at any address that is aligned to kAlign bytes; up to 3 bytes before and 4 after
// what is needed are read, in aligned words.
//   pair(segment, b, t)   of block b (< 8) the weights 4t .. 4t+3 and 16+4t .. 16+4t+3 (t < 4) as two
//                         words of four int8: what a lane holds of a row in an m16n8k32 fragment
//   scale(segment, s)     ws of scale group s: 8 groups of 32 elements, or 16 of 16 (group_scale())
//   minus_min(segment, s) -wm of the group, where kMins
//   Where kIntegers, ws is whole_scale(segment) * integer_scale(segment, s), which is from -128 to 127, instead.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/grid_words.cuh"
#include "kernels/cuda/spread.cuh"
#include "kernels/cuda/ue4m3.cuh"
#include "tensor/blocks.h"
#include "tensor/dtype.h"

namespace millrace::kernels::cuda {

__device__ inline float half_at(const std::uint8_t* p) {  // p: 2-byte aligned
  return __half2float(__ushort_as_half(*reinterpret_cast<const unsigned short*>(p)));
}

/// The 4 bytes at p + 4 * index; p is aligned to kAlign.
template <int kAlign>
__device__ inline std::uint32_t load_word(const std::uint8_t* p, int index) {
  if constexpr (kAlign % 4 == 0) {
    return reinterpret_cast<const std::uint32_t*>(p)[index];
  } else {  // calls with the same p share the aligned words
    const unsigned skew = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(p)) & 3;
    const auto* words = reinterpret_cast<const std::uint32_t*>(p - skew) + index;
    return __funnelshift_r(words[0], words[1], 8 * skew);
  }
}

/// Takes kOffset (at most 64) from each of four bytes below 128: no byte borrows from the next.
template <int kOffset>
__device__ inline std::uint32_t less(std::uint32_t bytes) {
  return (bytes + 0x01010101u * (128 - kOffset)) ^ 0x80808080u;
}

__host__ __device__ constexpr std::uint32_t four_bytes(const std::int8_t* p) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= std::uint32_t{static_cast<std::uint8_t>(p[i])} << (8 * i);
  return word;
}

/// The low nibbles and the high nibbles of four bytes, through a codebook of 16 int8.
template <const std::int8_t* kCodebook>
__device__ inline void look_up(std::uint32_t nibbles, std::uint32_t& w0, std::uint32_t& w1) {
  constexpr std::uint32_t t0 = four_bytes(kCodebook), t1 = four_bytes(kCodebook + 4), t2 = four_bytes(kCodebook + 8),
                          t3 = four_bytes(kCodebook + 12);
  // prmt picks from eight bytes by three bits; the fourth bit then picks between the codebook's halves.
  const std::uint32_t low3 = nibbles & 0x77777777u, half = 0x32103210u | (nibbles & 0x88888888u) >> 1;
  const std::uint32_t first = __byte_perm(__byte_perm(t0, t1, low3), __byte_perm(t2, t3, low3), half);
  const std::uint32_t last = __byte_perm(__byte_perm(t0, t1, low3 >> 16), __byte_perm(t2, t3, low3 >> 16), half >> 16);
  w0 = __byte_perm(first, last, 0x6420);
  w1 = __byte_perm(first, last, 0x7531);
}

/// What holds unless a dtype says otherwise.
struct QuadsBase {
  static constexpr bool kMins = false;    // has wm
  static constexpr bool kHalves = false;  // scale groups of 16 elements, not 32
  static constexpr bool kIntegers = false;
};

/// Simple blocks of 32: Block at segment + b * sizeof(Block), with a float16 scale `d`.
template <typename Block>
struct SimpleQuads : QuadsBase {
  static constexpr int kBytes = 8 * sizeof(Block);  // of a segment
  static constexpr int kAlign = sizeof(Block) % 8 == 0   ? 8
                                : sizeof(Block) % 4 == 0 ? 4
                                : sizeof(Block) % 2 == 0 ? 2
                                                         : 1;
  static constexpr int kUnit = 32;  // elements that a row's length is a multiple of
  __device__ static float scale(const std::uint8_t* segment, int s) {
    return half_at(segment + s * static_cast<int>(sizeof(Block)) + offsetof(Block, d));
  }

 protected:
  /// The four bytes whose low and high nibbles are the pair.
  __device__ static std::uint32_t nibbles(const std::uint8_t* segment, int b, int t) {
    constexpr int kOffset = offsetof(Block, qs);
    return load_word<(kOffset % kAlign == 0 ? kAlign : 2)>(segment + b * static_cast<int>(sizeof(Block)) + kOffset, t);
  }
  template <typename B = Block>
  __device__ static std::uint32_t fifth_bits(const std::uint8_t* segment, int b) {
    return load_word<(offsetof(B, qh) % 4 == 0 && kAlign % 4 == 0 ? 4 : 2)>(
        segment + b * static_cast<int>(sizeof(B)) + offsetof(B, qh), 0);
  }
};

template <DType dtype>
struct Quads;

template <>
struct Quads<DType::q4_0> : SimpleQuads<BlockQ4_0> {
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const std::uint32_t q = nibbles(segment, b, t);
    w0 = less<8>(q & 0x0F0F0F0Fu);
    w1 = less<8>(q >> 4 & 0x0F0F0F0Fu);
  }
};

template <>
struct Quads<DType::q4_1> : SimpleQuads<BlockQ4_1> {
  static constexpr bool kMins = true;
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const std::uint32_t q = nibbles(segment, b, t);
    w0 = q & 0x0F0F0F0Fu;
    w1 = q >> 4 & 0x0F0F0F0Fu;
  }
  __device__ static float minus_min(const std::uint8_t* segment, int s) {
    return half_at(segment + s * static_cast<int>(sizeof(BlockQ4_1)) + offsetof(BlockQ4_1, m));
  }
};

template <>
struct Quads<DType::q5_0> : SimpleQuads<BlockQ5_0> {
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const std::uint32_t q = nibbles(segment, b, t), fifth = fifth_bits(segment, b) >> (4 * t);
    w0 = less<16>((q & 0x0F0F0F0Fu) | spread_bits<4>(fifth));
    w1 = less<16>((q >> 4 & 0x0F0F0F0Fu) | spread_bits<4>(fifth >> 16));
  }
};

template <>
struct Quads<DType::q5_1> : SimpleQuads<BlockQ5_1> {
  static constexpr bool kMins = true;
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const std::uint32_t q = nibbles(segment, b, t), fifth = fifth_bits(segment, b) >> (4 * t);
    w0 = (q & 0x0F0F0F0Fu) | spread_bits<4>(fifth);
    w1 = (q >> 4 & 0x0F0F0F0Fu) | spread_bits<4>(fifth >> 16);
  }
  __device__ static float minus_min(const std::uint8_t* segment, int s) {
    return half_at(segment + s * static_cast<int>(sizeof(BlockQ5_1)) + offsetof(BlockQ5_1, m));
  }
};

template <>
struct Quads<DType::q8_0> : SimpleQuads<BlockQ8_0> {
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const std::uint8_t* qs = segment + b * static_cast<int>(sizeof(BlockQ8_0)) + offsetof(BlockQ8_0, qs);
    w0 = load_word<2>(qs, t);
    w1 = load_word<2>(qs, t + 4);
  }
};

template <>
struct Quads<DType::iq4_nl> : SimpleQuads<BlockIQ4_NL> {
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    look_up<kIq4Codebook>(nibbles(segment, b, t), w0, w1);
  }
};

template <>
struct Quads<DType::mxfp4> : QuadsBase {
  static constexpr int kBytes = 8 * sizeof(BlockMXFP4), kAlign = 1, kUnit = 32;
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const std::uint8_t* qs = segment + b * static_cast<int>(sizeof(BlockMXFP4)) + offsetof(BlockMXFP4, qs);
    look_up<kMxfp4Codebook>(load_word<1>(qs, t), w0, w1);
  }
  __device__ static float scale(const std::uint8_t* segment, int s) {
    const std::uint32_t e = segment[s * static_cast<int>(sizeof(BlockMXFP4)) + offsetof(BlockMXFP4, e)];
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);  // e8m0_half
  }
};

template <>
struct Quads<DType::nvfp4> : QuadsBase {
  static constexpr int kBytes = 4 * sizeof(BlockNVFP4), kAlign = 4, kUnit = kNvfp4Block;
  static constexpr bool kHalves = true;
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    // Of both halves of the block the same four bytes, whose low nibbles are wanted or their high ones.
    const std::uint8_t* qs =
        segment + b / 2 * static_cast<int>(sizeof(BlockNVFP4)) + offsetof(BlockNVFP4, qs) + b % 2 * 16;
    const int shift = t / 2 * 4;
    const std::uint32_t first = load_word<4>(qs, t % 2) >> shift, second = load_word<4>(qs, 2 + t % 2) >> shift;
    look_up<kMxfp4Codebook>((first & 0x0F0F0F0Fu) | (second & 0x0F0F0F0Fu) << 4, w0, w1);
  }
  __device__ static float scale(const std::uint8_t* segment, int s) {
    return ue4m3_scale(segment[s / 4 * static_cast<int>(sizeof(BlockNVFP4)) + offsetof(BlockNVFP4, d) + s % 4]);
  }
};

/// Fields of one bit or two beside a scale (Q1_0, Q2_0), in the order of the elements.
template <typename Block, int kBits>
struct FieldQuads : QuadsBase {
  static constexpr int kParts = 4 / kBits;  // blocks of 32 in one of the file
  static constexpr int kBytes = 8 / kParts * sizeof(Block), kAlign = 2, kUnit = 32 * kParts;
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const std::uint8_t* qs = block_of(segment, b) + offsetof(Block, qs) + b % kParts * 4 * kBits;
    const int at = 4 * kBits * t;  // bits in front of elements 4t ..
    if constexpr (kBits == 1) {
      const std::uint32_t all = load_word<2>(qs, 0);
      w0 = less<1>(spread_bits<1>(all >> at));
      w1 = less<1>(spread_bits<1>(all >> (16 + at)));
    } else {
      w0 = less<1>(spread_pairs(load_word<2>(qs, 0) >> at));
      w1 = less<1>(spread_pairs(load_word<2>(qs, 1) >> at));
    }
  }
  __device__ static float scale(const std::uint8_t* segment, int s) {
    return half_at(block_of(segment, s) + offsetof(Block, d));
  }

 private:
  __device__ static const std::uint8_t* block_of(const std::uint8_t* segment, int b) {
    return segment + b / kParts * static_cast<int>(sizeof(Block));
  }
};
template <>
struct Quads<DType::q1_0> : FieldQuads<BlockQ1_0, 1> {};
template <>
struct Quads<DType::q2_0> : FieldQuads<BlockQ2_0, 2> {};

/// Super-blocks of 256, with a float16 scale `d` of the whole and integers of groups.
template <typename Block, int kAlignment>
struct SuperQuads : QuadsBase {
  static constexpr int kBytes = sizeof(Block), kAlign = kAlignment, kUnit = 256;
  __device__ static float whole_scale(const std::uint8_t* segment) { return half_at(segment + offsetof(Block, d)); }
};

template <>
struct Quads<DType::q2_k> : SuperQuads<BlockQ2_K, 4> {
  static constexpr bool kMins = true, kHalves = true, kIntegers = true;
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const std::uint8_t* qs = segment + offsetof(BlockQ2_K, qs) + 32 * (b / 4);
    const int shift = 2 * (b % 4);
    w0 = load_word<4>(qs, t) >> shift & 0x03030303u;
    w1 = load_word<4>(qs, t + 4) >> shift & 0x03030303u;
  }
  __device__ static int integer_scale(const std::uint8_t* segment, int s) {
    return segment[offsetof(BlockQ2_K, scales) + s] & 15;
  }
  __device__ static float minus_min(const std::uint8_t* segment, int s) {
    return -(half_at(segment + offsetof(BlockQ2_K, dmin)) *
             static_cast<float>(segment[offsetof(BlockQ2_K, scales) + s] >> 4));
  }
};

template <>
struct Quads<DType::q3_k> : SuperQuads<BlockQ3_K, 2> {
  static constexpr bool kHalves = true, kIntegers = true;
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const std::uint8_t* qs = segment + offsetof(BlockQ3_K, qs) + 32 * (b / 4);
    const std::uint8_t* third = segment + offsetof(BlockQ3_K, hmask);
    const auto join = [&](std::uint32_t low, std::uint32_t high) {
      return less<4>((low >> (2 * (b % 4)) & 0x03030303u) | (high >> b & 0x01010101u) << 2);
    };
    w0 = join(load_word<2>(qs, t), load_word<2>(third, t));
    w1 = join(load_word<2>(qs, t + 4), load_word<2>(third, t + 4));
  }
  __device__ static int integer_scale(const std::uint8_t* segment, int s) {
    const std::uint8_t* packed = segment + offsetof(BlockQ3_K, scales);
    const int low = packed[s % 8] >> (4 * (s / 8)) & 15;
    const int high = packed[8 + s % 4] >> (2 * (s / 4)) & 3;
    return (low | high << 4) - 32;
  }
};

/// Q4_K and Q5_K: scales and mins of six bits.
template <typename Block>
struct SixBitQuads : SuperQuads<Block, 16> {
  static constexpr bool kMins = true, kIntegers = true;
  __device__ static int integer_scale(const std::uint8_t* segment, int s) {
    const std::uint8_t* packed = segment + offsetof(Block, scales);
    return s < 4 ? packed[s] & 63 : (packed[s + 4] & 15) | packed[s - 4] >> 6 << 4;
  }
  __device__ static float minus_min(const std::uint8_t* segment, int s) {
    const std::uint8_t* packed = segment + offsetof(Block, scales);
    const int m = s < 4 ? packed[s + 4] & 63 : packed[s + 4] >> 4 | packed[s] >> 6 << 4;
    return -(half_at(segment + offsetof(Block, dmin)) * static_cast<float>(m));
  }

 protected:
  __device__ static void nibbles(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const std::uint8_t* qs = segment + offsetof(Block, qs) + 32 * (b / 2);
    const int shift = 4 * (b % 2);
    w0 = load_word<16>(qs, t) >> shift & 0x0F0F0F0Fu;
    w1 = load_word<16>(qs, t + 4) >> shift & 0x0F0F0F0Fu;
  }
};

template <>
struct Quads<DType::q4_k> : SixBitQuads<BlockQ4_K> {
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    nibbles(segment, b, t, w0, w1);
  }
};

template <>
struct Quads<DType::q5_k> : SixBitQuads<BlockQ5_K> {
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    nibbles(segment, b, t, w0, w1);
    const std::uint8_t* fifth = segment + offsetof(BlockQ5_K, qh);
    w0 |= (load_word<16>(fifth, t) >> b & 0x01010101u) << 4;
    w1 |= (load_word<16>(fifth, t + 4) >> b & 0x01010101u) << 4;
  }
};

template <>
struct Quads<DType::q6_k> : SuperQuads<BlockQ6_K, 2> {
  static constexpr bool kHalves = true, kIntegers = true;
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const int half = b / 4, part = b % 4;
    const std::uint8_t* ql = segment + offsetof(BlockQ6_K, ql) + 64 * half + 32 * (part & 1);
    const std::uint8_t* qh = segment + offsetof(BlockQ6_K, qh) + 32 * half;
    const auto join = [&](std::uint32_t low, std::uint32_t high) {
      return less<32>((low >> (4 * (part >> 1)) & 0x0F0F0F0Fu) | (high >> (2 * part) & 0x03030303u) << 4);
    };
    w0 = join(load_word<2>(ql, t), load_word<2>(qh, t));
    w1 = join(load_word<2>(ql, t + 4), load_word<2>(qh, t + 4));
  }
  __device__ static int integer_scale(const std::uint8_t* segment, int s) {
    return static_cast<std::int8_t>(segment[offsetof(BlockQ6_K, scales) + s]);
  }
};

template <>
struct Quads<DType::iq4_xs> : SuperQuads<BlockIQ4_XS, 8> {
  static constexpr bool kIntegers = true;
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    look_up<kIq4Codebook>(load_word<8>(segment + offsetof(BlockIQ4_XS, qs) + 16 * b, t), w0, w1);
  }
  __device__ static int integer_scale(const std::uint8_t* segment, int s) {
    const int low = segment[offsetof(BlockIQ4_XS, scales_l) + s / 2] >> (4 * (s % 2)) & 15;
    const int high = *reinterpret_cast<const unsigned short*>(segment + offsetof(BlockIQ4_XS, scales_h)) >> (2 * s) & 3;
    return (low | high << 4) - 32;
  }
};

/// A segment in memory as GridWords reads one.
struct SegmentBytes {
  const std::uint8_t* at;
};
__device__ inline std::uint32_t bytes4(const SegmentBytes& bytes, int offset) {
  return load_word<2>(bytes.at + offset, 0);
}
__device__ inline std::uint32_t byte_at(const SegmentBytes& bytes, int offset) { return bytes.at[offset]; }
__device__ inline float half_at(const SegmentBytes& bytes, int offset) { return half_at(bytes.at + offset); }

template <DType dtype>
struct GridQuads : QuadsBase {
  using Words = GridWords<dtype>;
  static constexpr int kBytes = Words::kBlockBytes, kAlign = 2, kUnit = 256;
  static constexpr bool kHalves = Words::kGroup == 16;
  __device__ static void pair(const std::uint8_t* segment, int b, int t, std::uint32_t& w0, std::uint32_t& w1) {
    const SegmentBytes bytes{segment};
    w0 = Words::four(bytes, b, t);
    w1 = Words::four(bytes, b, t + 4);
    if constexpr (!Words::kSigned) {
      w0 = less<Words::kOffset>(w0);
      w1 = less<Words::kOffset>(w1);
    }
  }
  __device__ static float scale(const std::uint8_t* segment, int s) {
    const SegmentBytes bytes{segment};
    return Words::scale(bytes, s);
  }
};
template <>
struct Quads<DType::iq2_xxs> : GridQuads<DType::iq2_xxs> {};
template <>
struct Quads<DType::iq2_xs> : GridQuads<DType::iq2_xs> {};
template <>
struct Quads<DType::iq2_s> : GridQuads<DType::iq2_s> {};
template <>
struct Quads<DType::iq3_xxs> : GridQuads<DType::iq3_xxs> {};
template <>
struct Quads<DType::iq3_s> : GridQuads<DType::iq3_s> {};
template <>
struct Quads<DType::iq1_s> : GridQuads<DType::iq1_s> {};
template <>
struct Quads<DType::iq1_m> : GridQuads<DType::iq1_m> {};
template <>
struct Quads<DType::tq1_0> : GridQuads<DType::tq1_0> {};
template <>
struct Quads<DType::tq2_0> : GridQuads<DType::tq2_0> {};

/// ws of scale group s.
template <typename Q>
__device__ inline float group_scale(const std::uint8_t* segment, int s) {
  if constexpr (Q::kIntegers) {
    return Q::whole_scale(segment) * static_cast<float>(Q::integer_scale(segment, s));
  } else {
    return Q::scale(segment, s);
  }
}

}  // namespace millrace::kernels::cuda

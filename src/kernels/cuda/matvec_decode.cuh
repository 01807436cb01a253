// How one thread multiplies a segment of 256 weights with activations: a decoder a dtype, each the formula of blocks.h.
//
// A segment's bytes lie in shared memory and are read as 32-bit words, each 32 elements become eight words of int8, and
// dp4a makes the exact integers. Nothing is shifted that need not be: bits may stay where they are in a byte (then they
// are unsigned and weigh 2^shift), and the group's integer is shifted back, exactly.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/grid_words.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/spread.cuh"
#include "kernels/cuda/ue4m3.cuh"
#include "tensor/blocks.h"

namespace millrace::kernels::cuda {

// ---------------------------------------------------------------------------------------------------------------------
// Reading a segment

/// The words of a segment of kBytes that starts at a shared address that is a multiple of kAlign bytes (1 and 2: any).
/// Each is loaded when it is first asked for and kept: indices are constants once loops are unrolled, so that all of
/// this is settled by the compiler. Left to itself it would cut wide loads into narrow ones, whose lanes meet in the
/// same banks.
template <int kAlign, int kBytes>
class Words {
 public:
  __device__ explicit Words(std::uint32_t address) : address_(address) {}
  __device__ __forceinline__ std::uint32_t operator()(int i) {
    constexpr int kWide = kAlign / 4;
    const int first = i / kWide * kWide;
    if (!loaded_[i / kWide]) {
      loaded_[i / kWide] = true;
      if constexpr (kWide == 4) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words_[first]), "=r"(words_[first + 1]), "=r"(words_[first + 2]), "=r"(words_[first + 3])
                     : "r"(address_ + 4 * first));
      } else if constexpr (kWide == 2) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(words_[first]), "=r"(words_[first + 1])
                     : "r"(address_ + 4 * first));
      } else {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words_[first]) : "r"(address_ + 4 * first));
      }
    }
    return words_[i];
  }

 private:
  std::uint32_t address_;
  std::uint32_t words_[(kBytes + 15) / 16 * 4];
  bool loaded_[(kBytes + 15) / 16 * 4] = {};
};
template <int kBytes>
class Words<2, kBytes> {
 public:
  __device__ explicit Words(std::uint32_t address) : words_(address & ~3u), shift_(8 * (address & 3)) {}
  __device__ __forceinline__ std::uint32_t operator()(int i) {
    const std::uint32_t low = words_(i);
    return __funnelshift_r(low, words_(i + 1), shift_);
  }

 private:
  Words<4, kBytes + 4> words_;
  std::uint32_t shift_;
};

/// The four bytes at `offset`, a compile-time constant after unrolling.
template <typename W>
__device__ __forceinline__ std::uint32_t bytes4(W& word, int offset) {
  const std::uint32_t low = word(offset / 4);
  return offset % 4 == 0 ? low : __funnelshift_r(low, word(offset / 4 + 1), 8 * (offset % 4));
}
template <typename W>
__device__ __forceinline__ std::uint32_t byte_at(W& word, int offset) {
  return (word(offset / 4) >> (8 * (offset % 4))) & 0xff;
}
/// REQUIRES: an even offset.
template <typename W>
__device__ __forceinline__ float half_at(W& word, int offset) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(word(offset / 4) >> (8 * (offset % 4)))));
}
__device__ __forceinline__ float byte_of(std::uint32_t word, int i) {
  return static_cast<float>((word >> (8 * i)) & 0xff);
}

__device__ __forceinline__ int dp4a_unsigned(std::uint32_t w, std::uint32_t x, int sum) {
  int out;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(w), "r"(x), "r"(sum));
  return out;
}

// ---------------------------------------------------------------------------------------------------------------------
// Decoders. A quantized one has
//   kBytes    of a segment in memory; kAlign: its alignment where cols is a multiple of 256
//   kGroup    elements of a scale group, 32 or 16
//   kOffset   to subtract from each stored weight; kMin: groups have a min; kSigned: words() are signed bytes
//   words(word, b, w)          elements 32 b .. 32 b + 31 as eight words, times 2^shift(b, half) for each half of them
//   scale(word, g), min(word, g)   of scale group g

struct SimpleDecoder {
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kMin = false, kSigned = false;
  __host__ __device__ static constexpr int shift(int, int) { return 0; }
};

template <DType>
struct Decoder;

/// Four bits a weight, low nibbles first: block b's nibbles lie kData bytes into it.
template <int kBlockBytes, int kData>
struct NibbleDecoder : SimpleDecoder {
  static constexpr int kBytes = 8 * kBlockBytes;
  static constexpr int kAlign = 16;
  __host__ __device__ static constexpr int shift(int, int half) { return 4 * half; }
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t q = bytes4(word, b * kBlockBytes + kData + 4 * i);
      w[i] = q & 0x0f0f0f0fu;
      w[i + 4] = q & 0xf0f0f0f0u;
    }
  }
  template <typename W>
  __device__ static float scale(W& word, int b) {
    return half_at(word, b * kBlockBytes);
  }
};
template <>
struct Decoder<DType::q4_0> : NibbleDecoder<18, 2> {
  static constexpr int kOffset = 8;
};
template <>
struct Decoder<DType::q4_1> : NibbleDecoder<20, 4> {
  static constexpr bool kMin = true;
  template <typename W>
  __device__ static float min(W& word, int b) {
    return -half_at(word, b * 20 + 2);
  }
};

/// As above with a fifth bit: bit j of the word at kHigh is that of element j.
template <int kBlockBytes, int kHigh>
struct FiveBitDecoder : SimpleDecoder {
  static constexpr int kBytes = 8 * kBlockBytes;
  static constexpr int kAlign = 16;
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
    const std::uint32_t high = bytes4(word, b * kBlockBytes + kHigh);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t q = bytes4(word, b * kBlockBytes + kHigh + 4 + 4 * i);
      w[i] = (q & 0x0f0f0f0fu) | spread(high >> (4 * i));
      w[i + 4] = ((q >> 4) & 0x0f0f0f0fu) | spread(high >> (16 + 4 * i));
    }
  }
  template <typename W>
  __device__ static float scale(W& word, int b) {
    return half_at(word, b * kBlockBytes);
  }

 private:
  // The low four bits, one to bit 4 of each byte.
  __device__ static std::uint32_t spread(std::uint32_t bits) { return ((bits & 15) * 0x02040810u) & 0x10101010u; }
};
template <>
struct Decoder<DType::q5_0> : FiveBitDecoder<22, 2> {
  static constexpr int kOffset = 16;
};
template <>
struct Decoder<DType::q5_1> : FiveBitDecoder<24, 4> {
  static constexpr bool kMin = true;
  template <typename W>
  __device__ static float min(W& word, int b) {
    return -half_at(word, b * 24 + 2);
  }
};

template <>
struct Decoder<DType::q8_0> : SimpleDecoder {
  static constexpr int kBytes = 272, kAlign = 16;
  static constexpr bool kSigned = true;
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = bytes4(word, 34 * b + 2 + 4 * i);
  }
  template <typename W>
  __device__ static float scale(W& word, int b) {
    return half_at(word, 34 * b);
  }
};

/// Sixteen int8 as words, to be picked by nibbles.
struct Codebook {
  std::uint32_t word[4];
};
constexpr Codebook codebook_of(const std::int8_t (&levels)[16]) {
  Codebook book{};
  for (int i = 0; i < 16; ++i) {
    book.word[i / 4] |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(levels[i])) << (8 * (i % 4));
  }
  return book;
}
inline constexpr Codebook kIq4Book = codebook_of(kIq4Codebook);
inline constexpr Codebook kMxfp4Book = codebook_of(kMxfp4Codebook);

/// The levels of eight nibbles: of the low ones of q's bytes into `low`, of the high ones into `high`. A permute picks
/// by three bits, so that both halves of the book are asked and the fourth bit picks between the answers.
template <std::uint32_t k0, std::uint32_t k1, std::uint32_t k2, std::uint32_t k3>
__device__ __forceinline__ void look_up(std::uint32_t q, std::uint32_t& low, std::uint32_t& high) {
  const std::uint32_t three = q & 0x77777777u;
  const std::uint32_t fourth = ((q >> 1) & 0x44444444u) | 0x32103210u;
  const std::uint32_t a =
      __byte_perm(__byte_perm(k0, k1, three), __byte_perm(k2, k3, three), fourth);  // nibbles 0 to 3
  const std::uint32_t b = __byte_perm(__byte_perm(k0, k1, three >> 16), __byte_perm(k2, k3, three >> 16), fourth >> 16);
  low = __byte_perm(a, b, 0x6420);
  high = __byte_perm(a, b, 0x7531);
}

template <>
struct Decoder<DType::iq4_nl> : NibbleDecoder<18, 2> {
  static constexpr bool kSigned = true;
  __host__ __device__ static constexpr int shift(int, int) { return 0; }
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      look_up<kIq4Book.word[0], kIq4Book.word[1], kIq4Book.word[2], kIq4Book.word[3]>(bytes4(word, 18 * b + 2 + 4 * i),
                                                                                      w[i], w[i + 4]);
    }
  }
};

/// What the levels of a nibble are made of: its low three bits pick one of eight, which the fourth negates. So a
/// permute whose selectors are the nibbles themselves picks the levels of those that add, because the fourth bit of a
/// selector asks for the sign of a byte, which these have not; with all bits turned, and the levels in the opposite
/// order, it picks the levels of those that subtract. Elements come as the nibbles lie, low and high ones by turns.
template <std::uint32_t k0, std::uint32_t k1>
struct SignedLevels {
  /// __byte_perm() looks at three bits of a selector.
  __device__ static __forceinline__ int permute(std::uint32_t low, std::uint32_t high, std::uint32_t selectors) {
    int out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selectors));
    return out;
  }
  __host__ __device__ static constexpr std::uint32_t reversed(std::uint32_t word) {
    return word << 24 | (word & 0xff00) << 8 | (word >> 8 & 0xff00) | word >> 24;
  }
  /// plus - minus grows by the products of the eight nibbles of q with x[0..3] (low) and x[16..19] (high), of which
  /// `first` and `second` are by_turns().
  __device__ static __forceinline__ void dot(std::uint32_t q, std::uint32_t first, std::uint32_t second, int& plus,
                                             int& minus) {
    const std::uint32_t upper = q >> 16;
    plus = __dp4a(permute(k0, k1, q), static_cast<int>(first), plus);
    minus = __dp4a(permute(reversed(k1), reversed(k0), ~q), static_cast<int>(first), minus);
    plus = __dp4a(permute(k0, k1, upper), static_cast<int>(second), plus);
    minus = __dp4a(permute(reversed(k1), reversed(k0), ~upper), static_cast<int>(second), minus);
  }
};
/// Bytes of low and high by turns: those of their first halves, and of their second.
__device__ __forceinline__ void by_turns(std::uint32_t low, std::uint32_t high, std::uint32_t& first,
                                         std::uint32_t& second) {
  first = __byte_perm(low, high, 0x5140);
  second = __byte_perm(low, high, 0x7362);
}

template <>
struct Decoder<DType::mxfp4> : SimpleDecoder {
  static constexpr int kBytes = 136, kAlign = 8;
  static constexpr bool kSigned = true;
  using Levels = SignedLevels<kMxfp4Book.word[0], kMxfp4Book.word[1]>;
  /// The nibbles of elements 4 i and 16 + 4 i on of block b.
  template <typename W>
  __device__ static std::uint32_t nibbles(W& word, int b, int i) {
    return bytes4(word, 17 * b + 1 + 4 * i);
  }
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      look_up<kMxfp4Book.word[0], kMxfp4Book.word[1], kMxfp4Book.word[2], kMxfp4Book.word[3]>(nibbles(word, b, i), w[i],
                                                                                              w[i + 4]);
    }
  }
  template <typename W>
  __device__ static float scale(W& word, int b) {
    const std::uint32_t e = byte_at(word, 17 * b);
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }
};

template <>
struct Decoder<DType::nvfp4> : SimpleDecoder {
  static constexpr int kBytes = 144, kAlign = 16, kGroup = 16;
  static constexpr bool kSigned = true;
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // low nibbles, and two words on the high ones
      const int at = i / 2 * 4 + i % 2;
      look_up<kMxfp4Book.word[0], kMxfp4Book.word[1], kMxfp4Book.word[2], kMxfp4Book.word[3]>(
          bytes4(word, b / 2 * 36 + 4 + b % 2 * 16 + 4 * i), w[at], w[at + 2]);
    }
  }
  template <typename W>
  __device__ static float scale(W& word, int g) {
    return ue4m3_scale(byte_at(word, g / 4 * 36 + g % 4));
  }
};

template <>
struct Decoder<DType::iq4_xs> : SimpleDecoder {
  static constexpr int kBytes = 136, kAlign = 8;
  static constexpr bool kSigned = true;
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      look_up<kIq4Book.word[0], kIq4Book.word[1], kIq4Book.word[2], kIq4Book.word[3]>(word(2 + 4 * b + i), w[i],
                                                                                      w[i + 4]);
    }
  }
  template <typename W>
  __device__ static float scale(W& word, int b) {
    const std::uint32_t low = (word(1) >> (4 * b)) & 15, high = (word(0) >> (16 + 2 * b)) & 3;
    return half_at(word, 0) * static_cast<float>(static_cast<int>(low | high << 4) - 32);
  }
};

/// Fields of one bit or two beside a scale (Q1_0, Q2_0), in the order of the elements.
template <int kBits>
struct FieldDecoder : SimpleDecoder {
  static constexpr int kBlockBytes = 18, kParts = 4 / kBits;  // blocks of 32 in one of the file
  static constexpr int kBytes = 8 / kParts * kBlockBytes, kAlign = 4 * kBits, kOffset = 1;
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
    const int at = b / kParts * kBlockBytes + 2 + b % kParts * 4 * kBits;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kBits == 1) {  // 0 and 2 are -1 and 1
        w[i] = spread_bits<1>(bytes4(word, at) >> (4 * i));
      } else {
        w[i] = spread_pairs(bytes4(word, at + i / 4 * 4) >> (8 * (i % 4)));
      }
    }
  }
  template <typename W>
  __device__ static float scale(W& word, int b) {
    return half_at(word, b / kParts * kBlockBytes);
  }
};
static_assert(sizeof(BlockQ1_0) == 18 && sizeof(BlockQ2_0) == 18);
template <>
struct Decoder<DType::q1_0> : FieldDecoder<1> {};
template <>
struct Decoder<DType::q2_0> : FieldDecoder<2> {};

/// Q4_K and Q5_K: eight scales and mins of six bits.
struct ScalesK4 {
  template <typename W>
  __device__ static float scale(W& word, int g) {
    const std::uint32_t four = g < 4 ? word(1) & 0x3f3f3f3fu : (word(3) & 0x0f0f0f0fu) | ((word(1) >> 2) & 0x30303030u);
    return half_at(word, 0) * byte_of(four, g % 4);
  }
  template <typename W>
  __device__ static float min(W& word, int g) {
    const std::uint32_t four =
        g < 4 ? word(2) & 0x3f3f3f3fu : ((word(3) >> 4) & 0x0f0f0f0fu) | ((word(2) >> 2) & 0x30303030u);
    return half_at(word, 2) * byte_of(four, g % 4);
  }
};
template <>
struct Decoder<DType::q4_k> : SimpleDecoder, ScalesK4 {
  static constexpr int kBytes = 144, kAlign = 16;
  static constexpr bool kMin = true;
  __host__ __device__ static constexpr int shift(int b, int) { return 4 * (b % 2); }
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = word(4 + 8 * (b / 2) + i) & (b % 2 == 0 ? 0x0f0f0f0fu : 0xf0f0f0f0u);
  }
};
template <>
struct Decoder<DType::q5_k> : SimpleDecoder, ScalesK4 {
  static constexpr int kBytes = 176, kAlign = 16;
  static constexpr bool kMin = true;
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t q = word(12 + 8 * (b / 2) + i), high = word(4 + i);
      w[i] = ((b % 2 == 0 ? q : q >> 4) & 0x0f0f0f0fu) | ((b <= 4 ? high << (4 - b) : high >> (b - 4)) & 0x10101010u);
    }
  }
};

template <>
struct Decoder<DType::q2_k> : SimpleDecoder {
  static constexpr int kBytes = 84, kAlign = 4, kGroup = 16;
  static constexpr bool kMin = true;
  __host__ __device__ static constexpr int shift(int b, int) { return 2 * (b % 4); }
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = word(4 + 8 * (b / 4) + i) & (0x03030303u << (2 * (b % 4)));
  }
  template <typename W>
  __device__ static float scale(W& word, int g) {
    return half_at(word, 80) * byte_of(word(g / 4) & 0x0f0f0f0fu, g % 4);
  }
  template <typename W>
  __device__ static float min(W& word, int g) {
    return half_at(word, 82) * byte_of((word(g / 4) >> 4) & 0x0f0f0f0fu, g % 4);
  }
};

template <>
struct Decoder<DType::q3_k> : SimpleDecoder {
  static constexpr int kBytes = 110, kAlign = 2, kGroup = 16, kOffset = 4;
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t q = word(8 + 8 * (b / 4) + i), high = word(i);
      w[i] = ((q >> (2 * (b % 4))) & 0x03030303u) | ((b <= 2 ? high << (2 - b) : high >> (b - 2)) & 0x04040404u);
    }
  }
  template <typename W>
  __device__ static float scale(W& word, int g) {
    const std::uint32_t low = (word(24 + g / 4 % 2) >> (g < 8 ? 0 : 4)) & 0x0f0f0f0fu;
    const std::uint32_t four = low | ((word(26) >> (2 * (g / 4))) & 0x03030303u) << 4;
    return half_at(word, 108) * (byte_of(four, g % 4) - 32.0f);
  }
};

template <>
struct Decoder<DType::q6_k> : SimpleDecoder {
  static constexpr int kBytes = 210, kAlign = 2, kGroup = 16, kOffset = 32;
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
    const int part = b % 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t low = word(16 * (b / 4) + 8 * (part % 2) + i), high = word(32 + 8 * (b / 4) + i);
      const std::uint32_t two = part == 0 ? high << 4 : part == 1 ? high << 2 : part == 2 ? high : high >> 2;
      w[i] = ((part < 2 ? low : low >> 4) & 0x0f0f0f0fu) | (two & 0x30303030u);
    }
  }
  template <typename W>
  __device__ static float scale(W& word, int g) {
    const int sc = static_cast<std::int8_t>(word(48 + g / 4) >> (8 * (g % 4)));
    return half_at(word, 208) * static_cast<float>(sc);
  }
};

template <DType dtype>
struct GridDecoder : SimpleDecoder {
  using Grid = GridWords<dtype>;
  static constexpr int kBytes = Grid::kBlockBytes, kAlign = kBytes % 8 == 0 ? 8 : 2;
  static constexpr int kGroup = Grid::kGroup, kOffset = Grid::kOffset, kPoints = Grid::kPoints;
  static constexpr bool kSigned = Grid::kSigned;
  __device__ static std::uint32_t point(int i) { return __ldg(Grid::points() + i); }
  template <typename W>
  __device__ static void words(W& word, int b, std::uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = Grid::four(word, b, i);
  }
  template <typename W>
  __device__ static float scale(W& word, int g) {
    return Grid::scale(word, g);
  }
};
template <>
struct Decoder<DType::iq2_xxs> : GridDecoder<DType::iq2_xxs> {};
template <>
struct Decoder<DType::iq2_xs> : GridDecoder<DType::iq2_xs> {};
template <>
struct Decoder<DType::iq2_s> : GridDecoder<DType::iq2_s> {};
template <>
struct Decoder<DType::iq3_xxs> : GridDecoder<DType::iq3_xxs> {};
template <>
struct Decoder<DType::iq3_s> : GridDecoder<DType::iq3_s> {};
template <>
struct Decoder<DType::iq1_s> : GridDecoder<DType::iq1_s> {};
template <>
struct Decoder<DType::iq1_m> : GridDecoder<DType::iq1_m> {};
template <>
struct Decoder<DType::tq1_0> : GridDecoder<DType::tq1_0> {};
template <>
struct Decoder<DType::tq2_0> : GridDecoder<DType::tq2_0> {};

/// Float ones: kElementBytes, and eight elements or one as float.
template <>
struct Decoder<DType::f16> {
  static constexpr int kElementBytes = 2;
  __device__ static float one(const std::byte* p) { return __half2float(*reinterpret_cast<const __half*>(p)); }
  __device__ static void eight(const std::byte* p, float (&w)[8]) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    const std::uint32_t bits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      w[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(bits[i / 2] >> (16 * (i % 2)))));
    }
  }
};
template <>
struct Decoder<DType::bf16> {
  static constexpr int kElementBytes = 2;
  __device__ static float one(const std::byte* p) {
    return __uint_as_float(static_cast<std::uint32_t>(*reinterpret_cast<const std::uint16_t*>(p)) << 16);
  }
  __device__ static void eight(const std::byte* p, float (&w)[8]) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    const std::uint32_t bits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = __uint_as_float(i % 2 == 0 ? bits[i / 2] << 16 : bits[i / 2] & 0xffff0000u);
  }
};
template <>
struct Decoder<DType::f32> {
  static constexpr int kElementBytes = 4;
  __device__ static float one(const std::byte* p) { return *reinterpret_cast<const float*>(p); }
  __device__ static void eight(const std::byte* p, float (&w)[8]) {
    const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
    w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
  }
};

__host__ __device__ constexpr bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

}  // namespace millrace::kernels::cuda

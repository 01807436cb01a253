// Quantization of the KV cache: how 32 channels of a token's key or value are encoded. Every executor writes exactly
// these bits.
//
// Q4: a channel is d * q, d a float16 and q in -8..7. Not a number counts as 0, and magnitudes above kLargestEncodable
// as that. The extreme is the least channel if its magnitude is at least the largest channel's, else the largest. Of
// four scales the one with the least squared error is taken, the first of equal ones: the extreme divided by -8, -7.5,
// -8.5 and -9, rounded to float16 (at most the largest finite one). With each, q = x * (1 / d), rounded to the nearest
// integer (ties to even) and held within -8..7, or 0 where d is 0. The squares of the errors x - d * q are added as a
// tree of neighbours: channels 2i and 2i + 1, then pairs, and so on; each operation is rounded once.
// So a scale serves the extreme's sign with all of the eight steps that this side has, and errors are 4 % smaller than
// those of the first scale alone (root of the mean square, of normal numbers).
//
// Few bits (DType::q3_k and q2_0 stand for KV's own codes of three and two bits, not for GGUF's blocks): rotated
// channels are nearly normal, so that one scale serves as many as are rotated together, and levels lie where those of
// Lloyd and Max do for normal numbers: of two bits -10, -3, 3 and 10, of three 10, 31, 55 and 88 with either sign. The
// scale is first the one at which the mean square is that of the levels, then twice what is best for the levels taken;
// it is a float16. All in float32, each operation rounded once, and sums as trees of neighbours.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "base/both_sides.h"
#include "tensor/dtype.h"

namespace millrace {

constexpr int kKvGroup = 32;  // channels with one scale

struct KvGroup {
  std::uint16_t d = 0;
  std::int8_t q[kKvGroup] = {};
};

KvGroup encode_kv_q4(const float* x);  // x: [kKvGroup]

/// Whether this is one of the KV formats of two or three bits.
constexpr bool kv_has_few_bits(DType dtype) { return dtype == DType::q3_k || dtype == DType::q2_0; }
/// Whether KV in this type is rotated by default: true for every type that loses more than f16 does.
constexpr bool kv_is_rotated(DType dtype) {
  return dtype == DType::q8_0 || dtype == DType::q4_0 || kv_has_few_bits(dtype);
}
/// For formats of few bits, how many channels of a head share a scale: the largest power of two that divides head_dim.
MR_BOTH constexpr std::int64_t kv_few_group(std::int64_t head_dim) { return head_dim & -head_dim; }
/// Levels by field, a byte each from the lowest: of two bits with their signs, of three their magnitudes.
constexpr std::uint32_t kKvLevels2 = 0x0a03fdf6, kKvLevels3 = 0x58371f0a;
/// The magnitudes among those levels, the least first, and between two the bound from which on the larger is taken.
struct KvMagnitudes {
  std::uint32_t bytes;
  int count;
  MR_BOTH constexpr float of(int index) const { return static_cast<float>(bytes >> 8 * index & 255u); }
  MR_BOTH constexpr float bound(int index) const { return (of(index) + of(index + 1)) / 2; }
};
MR_BOTH constexpr KvMagnitudes kv_magnitudes(DType dtype) {
  return dtype == DType::q2_0 ? KvMagnitudes{kKvLevels2 >> 16, 2} : KvMagnitudes{kKvLevels3, 4};
}
/// What the mean square of the level is whose number is normal with a deviation of 1: its root.
constexpr float kKvRoot2 = 6.622F, kKvRoot3 = 41.06F;
constexpr std::int64_t kMostKvFewGroup = 512;  // channels with one scale

/// The scale of `count` channels, and of each its field in the low two bits; of three bits the third is set where it is
/// negative. count: a power of two, 32 to kMostKvFewGroup.
std::uint16_t encode_kv_few(DType dtype, const float* x, std::int64_t count, std::uint8_t* codes);

/// Bytes of a token's key or value of a head in this format.
std::int64_t kv_row_bytes(DType dtype, std::int64_t head_dim);

}  // namespace millrace

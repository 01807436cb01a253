// Keys and values of few bits on their way to the int8 tensor cores (attention_q8.cuh). Their levels are small
// integers, so a block of them becomes what one in q8_0 is: int8, and scales repeated for each 32 channels. A block's
// bytes arrive at the beginning of the place that it then fills.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/kv_bits.cuh"

namespace millrace::kernels::cuda {

/// Whether the row at `position`, or a tile's rows whose newest is there, see this block of a sequence in its plain
/// one.
__device__ __forceinline__ bool is_plain_block(int block, int position) {
  return block == 0 || block == position / kKvBlock;
}

/// Of a head's keys or values in a block.
template <int kHeadDim, bool kSigns>
struct FewBitsBlock {
  static constexpr int kGroup = static_cast<int>(kv_few_group(kHeadDim)),
                       kGroups = kHeadDim / kGroup;  // channels with a scale
  static constexpr int kFields = kKvBlock * kHeadDim / 4, kSignBytes = kSigns ? kKvBlock * kHeadDim / 8 : 0;
  static constexpr int kBytes = kFields + kSignBytes + kKvBlock * kGroups * 2;
  static_assert(kBytes % 16 == 0 && kBytes <= kKvBlock * kHeadDim);
};

/// Where a chunk's two blocks go: int8 as in q8_0, and their scales.
struct FewBitsPlaces {
  std::byte *elements[2], *scales[2];
};

/// Each byte of a level, negated.
constexpr std::uint32_t negated_levels(std::uint32_t levels) {
  std::uint32_t all = 0;
  for (int i = 0; i < 4; ++i) all |= (-(levels >> 8 * i & 255u) & 255u) << 8 * i;
  return all;
}
constexpr std::uint32_t kMinusLevels3 = negated_levels(kKvLevels3);

/// Four levels by their codes, a byte each: fields, and above them the sign.
template <bool kSigns>
__device__ __forceinline__ unsigned few_bits_levels(unsigned codes) {
  const unsigned nibbles = __byte_perm(codes | codes >> 4, 0, 0x4420);
  return kSigns ? __byte_perm(kKvLevels3, kMinusLevels3, nibbles) : __byte_perm(kKvLevels2, 0, nibbles);
}

/// The bytes of few bits that lie at the beginning of places whose blocks have some become int8 and scales there. For
/// all kThreads threads of a block, which synchronize before they read them and before more is copied to the places.
template <int kHeadDim, bool kSigns, bool kKeys, int kThreads>
__device__ __forceinline__ void expand_few_bits(const FewBitsPlaces& places, bool first_has, bool second_has) {
  using Block = FewBitsBlock<kHeadDim, kSigns>;
  constexpr int kGroup = Block::kGroup;
  // An item is what one word of signs is of: four tokens of a key's eight channels that share their byte, or a value's
  // four neighbours of such channels. And a scale, of which there are as many.
  constexpr int kBlockItems = 2 * kHeadDim, kItems = 2 * kBlockItems / kThreads;
  static_assert(kItems * kThreads == 2 * kBlockItems);
  struct Item {
    int half, at;     // which of the block's
    int field, sign;  // bytes from the block's start, or from its signs, to the first word
    int to;           // the first of eight words of int8
    int source;       // scale
    bool there;
  };
  constexpr int kFar = kKeys ? kGroup / 8 * kKvBlock : kGroup / 8;  // bytes between an item's words of fields, or int8
  const auto item_of = [&](int thread, int j) {
    Item item;
    const int number = thread + kThreads * j;
    item.half = number / kBlockItems;
    item.at = number % kBlockItems;
    item.there = item.half == 0 ? first_has : second_has;
    if constexpr (kKeys) {
      const int row = item.at / 16, word = item.at % 16 * 4, g = row / (kGroup / 8), c = row % (kGroup / 8);
      item.field = (g * (kGroup / 4) + c) * kKvBlock + word;
      item.sign = row * kKvBlock + word;
      item.to = (g * kGroup + c) * kKvBlock + word;
      item.source = item.at / kKvBlock * 32 / kGroup * kKvBlock + item.at % kKvBlock;
    } else {
      constexpr int kSets = kHeadDim / 32;
      const int token = item.at / kSets, set = item.at % kSets, g = set / (kGroup / 32), c = set % (kGroup / 32) * 4;
      item.field = token * (kHeadDim / 4) + g * (kGroup / 4) + c;
      item.sign = token * (kHeadDim / 8) + set * 4;
      item.to = token * kHeadDim + g * kGroup + c;
      item.source = token * Block::kGroups + set * 32 / kGroup;
    }
    return item;
  };
  unsigned fields[kItems][2], signs[kItems];
  std::uint16_t scales[kItems];
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const Item item = item_of(static_cast<int>(threadIdx.x), j);
    if (!item.there) continue;
    const std::byte* from = item.half == 0 ? places.elements[0] : places.elements[1];
    fields[j][0] = *reinterpret_cast<const unsigned*>(from + item.field);
    fields[j][1] = *reinterpret_cast<const unsigned*>(from + item.field + kFar);
    signs[j] = kSigns ? *reinterpret_cast<const unsigned*>(from + Block::kFields + item.sign) : 0;
    scales[j] = reinterpret_cast<const std::uint16_t*>(from + Block::kFields + Block::kSignBytes)[item.source];
  }
  __syncthreads();  // everybody has read what is now overwritten
  // Places are found anew: there are no registers to keep those of all items in beside what was read.
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const Item item = item_of(thread, j);
    if (!item.there) continue;
    std::byte* const to = (item.half == 0 ? places.elements[0] : places.elements[1]) + item.to;
    // A warp's values lie so that its lanes would meet in few banks: they start with other parts.
    const int turn = kKeys ? 0 : item.at / (kHeadDim == 256 ? 8 : 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int part = (i + turn) % 8;  // of the eight, each an eighth of a scale's channels further
      const unsigned word = part % 2 == 0 ? fields[j][0] : fields[j][1];
      unsigned codes = word >> (part & 6) & 0x03030303u;
      if constexpr (kSigns) codes |= (signs[j] >> part & 0x01010101u) << 2;
      *reinterpret_cast<unsigned*>(to + part * kFar) = few_bits_levels<kSigns>(codes);
    }
    reinterpret_cast<std::uint16_t*>(item.half == 0 ? places.scales[0] : places.scales[1])[item.at] = scales[j];
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy engine writes here next
#endif
}

}  // namespace millrace::kernels::cuda

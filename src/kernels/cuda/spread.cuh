// Fields of one bit or two that lie side by side, each to a byte of its own.
#pragma once

#include <cstdint>

namespace millrace::kernels::cuda {

/// The low four bits of x, bit i to bit kBit of byte i.
template <int kBit>
__device__ inline std::uint32_t spread_bits(std::uint32_t x) {
  return ((x & 15) * (0x00204081u << kBit)) & (0x01010101u << kBit);
}

/// The low four pairs of bits of x, each in a byte.
__device__ inline std::uint32_t spread_pairs(std::uint32_t x) {
  const std::uint32_t nibbles = ((x & 255) | (x & 255) << 12) & 0x000F000Fu;
  return (nibbles | nibbles << 6) & 0x03030303u;
}

}  // namespace millrace::kernels::cuda

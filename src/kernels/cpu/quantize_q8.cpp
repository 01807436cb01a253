// Activations to int8, plain; and what all instruction sets share about Q8Rows.
#include <bit>
#include <cstdint>

#include "kernels/cpu/matmul.h"

namespace millrace::kernels {

Q8Rows q8_rows_at(std::byte* memory, std::int64_t rows, std::int64_t cols) {
  const auto aligned = [](std::uintptr_t address) { return (address + 63) & ~std::uintptr_t{63}; };
  const std::uintptr_t q = aligned(reinterpret_cast<std::uintptr_t>(memory));
  const std::uintptr_t d = aligned(q + static_cast<std::uintptr_t>(rows * cols));
  const std::uintptr_t sum16 = aligned(d + static_cast<std::uintptr_t>(rows * (cols / 32) * 4));
  return {reinterpret_cast<std::int8_t*>(q), reinterpret_cast<float*>(d), reinterpret_cast<std::int32_t*>(sum16)};
}

bool uses_q8(DType dtype) { return dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16; }

namespace plain {
namespace {

// One block of 32: fills q[32] and sum16[2], returns d.
float quantize_block(const float* x, std::int8_t* q, std::int32_t* sum16) {
  // Magnitudes compare as integers do, and so NaN is the largest of all.
  std::uint32_t amax_bits = 0;
  for (int i = 0; i < 32; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffff;
    amax_bits = bits > amax_bits ? bits : amax_bits;
  }
  const float amax = std::bit_cast<float>(amax_bits);
  const bool finite = amax_bits < 0x7f800000;
  const float inverse = finite && amax >= 0x1p-120F ? 127.0F / amax : 0.0F;
  sum16[0] = sum16[1] = 0;
  for (int i = 0; i < 32; ++i) {
    // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits.
    const float shifted = (inverse == 0 ? 0.0F : x[i] * inverse) + 12582912.0F;
    const std::int32_t value = std::bit_cast<std::int32_t>(shifted) - 0x4b400000;
    q[i] = static_cast<std::int8_t>(value);
    sum16[i / 16] += value;
  }
  if (!finite) return std::bit_cast<float>(0x7fc00000);
  return inverse == 0 ? 0.0F : amax / 127.0F;
}

}  // namespace

void quantize_q8(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t cols, Q8Rows out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t b = 0; b < cols / 32; ++b) {
      const std::int64_t block = r * (cols / 32) + b;
      out.d[block] = quantize_block(x + r * x_stride + 32 * b, out.q + 32 * block, out.sum16 + 2 * block);
    }
  }
}

}  // namespace plain
}  // namespace millrace::kernels

// Scalar decode of every dtype and encode of the ones Millrace writes: the definition that kernels are checked against.
// decode_row is exact float32 arithmetic in a fixed order: what it returns is what a quantized weight *is*.
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "tensor/dtype.h"

namespace millrace {

float f16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_f16(float value);  // round to nearest even
float bf16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_bf16(float value);  // round to nearest even, NaN stays NaN

/// The least magnitude that rounds to a float16 infinity.
constexpr float kBeyondHalf = 65520;

/// What encoders must know of numbers before they take them.
struct NumberRange {
  bool finite = true;
  float largest = 0;  // magnitude, where all are finite
};
NumberRange range_of(std::span<const float> numbers);

/// What a matrix whose largest magnitude this is can be divided by, so that the largest scale NVFP4 has falls to its
/// largest block, and few to where scales have but few steps. 1 where no normal float does that.
float nvfp4_factor(float largest);

/// Decodes `cols` elements. REQUIRES: computable dtype, cols a multiple of its block, row_bytes(dtype, cols) readable
/// bytes at `row` (any alignment).
void decode_row(DType dtype, const std::byte* row, std::int64_t cols, float* out);  // out: [cols]

/// True for every computable dtype.
bool can_encode(DType dtype);

/// Encodes `cols` elements into row_bytes(dtype, cols) bytes: the same on every machine. Quantized types but Q8_0 are
/// searched for the least squared error, where an element's counts as much as its importance: [cols], finite and not
/// negative; only ratios within a block matter; null: all alike. REQUIRES: can_encode(dtype), cols a multiple of the
/// block.
void encode_row(DType dtype, const float* row, std::int64_t cols, std::byte* out,  // row: [cols]
                const float* importance = nullptr);

}  // namespace millrace

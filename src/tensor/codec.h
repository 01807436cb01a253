// Scalar decoders for every dtype and encoders for those that Millrace writes. Kernels are tested against them.
// decode_row uses exact float32 arithmetic in a fixed order: its result defines the value of a quantized weight.
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

/// What must be known of values before they are encoded.
struct NumberRange {
  bool finite = true;
  float largest = 0;  // magnitude, where all are finite
};
NumberRange range_of(std::span<const float> numbers);

/// The divisor for a matrix with this largest magnitude, chosen so that its largest block gets NVFP4's largest scale
/// and few blocks get scales in the coarse, subnormal range. 1 if no normal float does that.
float nvfp4_factor(float largest);

/// Decodes `cols` elements. REQUIRES: computable dtype, cols a multiple of its block, row_bytes(dtype, cols) readable
/// bytes at `row` (any alignment).
void decode_row(DType dtype, const std::byte* row, std::int64_t cols, float* out);  // out: [cols]

/// True for every computable dtype.
bool can_encode(DType dtype);

/// Encodes `cols` elements into row_bytes(dtype, cols) bytes, the same on every machine. For quantized types other than
/// Q8_0 the encoder minimises the squared error, weighted by importance: [cols], finite and not negative; only ratios
/// within a block matter; null: all elements alike. REQUIRES: can_encode(dtype), cols a multiple of the block.
void encode_row(DType dtype, const float* row, std::int64_t cols, std::byte* out,  // row: [cols]
                const float* importance = nullptr);

}  // namespace millrace

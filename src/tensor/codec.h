// Scalar decode of every dtype and encode of the ones Millrace writes: the definition that kernels are checked against.
// decode_row is exact float32 arithmetic in a fixed order: what it returns is what a quantized weight *is*.
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "tensor/dtype.h"

namespace millrace {

float f16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_f16(float value);  // round to nearest even
float bf16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_bf16(float value);  // round to nearest even, NaN stays NaN

/// Decodes `cols` elements. REQUIRES: computable dtype, cols a multiple of its block, row_bytes(dtype, cols) readable
/// bytes at `row` (any alignment).
void decode_row(DType dtype, const std::byte* row, std::int64_t cols, float* out);  // out: [cols]

/// True for F32, F16, BF16, Q4_0, Q8_0, Q4_K, Q6_K.
bool can_encode(DType dtype);

/// Encodes `cols` elements into row_bytes(dtype, cols) bytes. REQUIRES: can_encode(dtype), cols a multiple of the
/// block.
void encode_row(DType dtype, const float* row, std::int64_t cols, std::byte* out);  // row: [cols]

}  // namespace millrace

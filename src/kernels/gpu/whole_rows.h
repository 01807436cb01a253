// The contract of what programs do whose rows all see each other (vision towers, encoders), beside a decoder's ops:
// LayerNorm, heads that are turned where they lie, rows that become one, and products of many rows with weights in 16
// bits on the tensor cores. Rules as in ops.h. Where nothing else is said, results have not the CPU's bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kernels/gpu/ops.h"

namespace millrace::kernels::gpu {

/// out = (x - mean) / sqrt(variance + eps) * weight + bias, row by row; out may be x. weight, bias: entries of float32
/// [cols]; bias may be none. Mean first, then the mean of squared differences.
Status layer_norm(const float* x, const std::byte* const* weight, const std::byte* const* bias, std::int32_t rows,
                  std::int32_t cols, float eps, float* out, device::StreamRef stream);
/// Each head of x [heads of all rows, head_dim], in place: x / rms(x) * weight, the entry of float32 [head_dim], or
/// none.
Status norm_heads(float* x, const std::byte* const* weight, std::int32_t heads, std::int32_t head_dim, float eps,
                  device::StreamRef stream);
/// Of each head of x [rows, heads, head_dim] the channels [first, first + rotary), in place, by the row's angles.
struct TurnCall {
  float* x = nullptr;
  const float* cos_sin = nullptr;  // [rows, rotary / 2, 2]
  std::int32_t rows = 0, heads = 0, head_dim = 0, rotary = 0, first = 0;
  bool neox = false;  // pairs (i, i + rotary / 2) instead of (2i, 2i + 1)
};
Status turn_heads(const TurnCall& call, device::StreamRef stream);
/// x = min(max(x, least), most); what is not a number stays.
Status clamp(float* x, float least, float most, std::int64_t n, device::StreamRef stream);
/// x [rows, cols] = (x - bias) * scale, entries of float32 [cols]; bias may be none.
Status standardize(float* x, const std::byte* const* bias, const std::byte* const* scale, std::int64_t rows,
                   std::int32_t cols, device::StreamRef stream);
/// out [rows / merge, merge * cols] = each `merge` rows of x [rows, cols] side by side; by_channel: first channel 0 of
/// all of them, then channel 1.
Status merge_rows(const float* x, std::int32_t rows, std::int32_t cols, std::int32_t merge, bool by_channel, float* out,
                  device::StreamRef stream);
/// out [rows / merge, cols] = the mean of each `merge` rows: their sum in ascending order, divided by `merge`.
Status mean_rows(const float* x, std::int32_t rows, std::int32_t cols, std::int32_t merge, float* out,
                 device::StreamRef stream);

/// Rows as f16 with a power of two each that brings their largest magnitude into [2^13, 2^14): x = unit * value. Rows
/// of zeros have the unit 1; one with what is not finite gives what is not finite.
struct HalfRows {
  std::uint16_t* x = nullptr;  // [rows, cols], 256-byte aligned
  float* unit = nullptr;       // [rows]
};
constexpr std::size_t half_rows_bytes(std::int64_t rows, std::int64_t cols) {
  return (static_cast<std::size_t>(rows * cols) * 2 + 255) / 256 * 256 + static_cast<std::size_t>(rows) * sizeof(float);
}
inline HalfRows half_rows_at(std::byte* memory, std::int64_t rows, std::int64_t cols) {
  return {reinterpret_cast<std::uint16_t*>(memory),
          reinterpret_cast<float*>(memory + (static_cast<std::size_t>(rows * cols) * 2 + 255) / 256 * 256)};
}
Status to_half_rows(const float* x, std::int32_t rows, std::int32_t cols, HalfRows out, device::StreamRef stream);

/// Whether matmul_half() takes such a matrix: f16 or bf16, rows of whole 16 bytes.
constexpr bool has_half_product(DType dtype, std::int64_t cols) {
  return (dtype == DType::f16 || dtype == DType::bf16) && cols % 8 == 0;
}
/// As matmul() of ops.h (Effect, products, biases, y and its stride) with weights that are f16, or bf16 rounded to f16,
/// and the input `x` in place of call.x: products by mma.m16n8k16 with float32 sums from +0 over ascending steps of 16
/// channels, then times the row's unit, then + bias. Any x_rows. A row's bits depend on nothing but the row and the
/// weights. No y_q8, y_bf16 or copies.
Status matmul_half(const MatmulCall& call, HalfRows x, device::StreamRef stream);

}  // namespace millrace::kernels::gpu

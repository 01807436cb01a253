// What the simulated kernels share. Their contracts are those of kernels/gpu; which bits they have says each file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "device.h"
#include "kernels/gpu/ops.h"
#include "kernels/kernels.h"
#include "tensor/codec.h"

namespace millrace::simulated {

/// The processor's kernels.
inline const kernels::Table& cpu() {
  static const kernels::Table& table = kernels::table(device::best_isa());
  return table;
}

/// What a launch of a call that no kernel takes gives.
inline Status refused() { return error(Code::internal, "no simulated kernel takes this call"); }

/// What an entry of a table of addresses leads to; null where there is none.
template <typename T = float>
const T* at(const std::byte* const* entry) {
  return entry == nullptr ? nullptr : reinterpret_cast<const T*>(*entry);
}

/// Rows of whole blocks of 32 as the GPU's int8: x [rows, cols], x_stride floats apart.
inline void quantize(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t cols,
                     kernels::gpu::Q8 out) {
  alignas(64) std::int8_t q[32];
  float d = 0;
  std::int32_t sum16[2] = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t b = 0; b < cols / 32; ++b) {
      cpu().quantize_q8(x + r * x_stride + 32 * b, 32, 1, 32, {q, &d, sum16});
      const std::int64_t block = r * (cols / 32) + b;
      std::memcpy(out.q + 32 * block, q, 32);
      const std::int32_t sum = sum16[0] + sum16[1];
      out.scale[block] = {d,
                          d * static_cast<float>(sum),
                          sum,
                          {static_cast<std::int16_t>(sum16[0]), static_cast<std::int16_t>(sum16[1])}};
    }
  }
}

inline void to_bf16(const float* x, std::int64_t count, kernels::gpu::Bf16* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = f32_to_bf16(x[i]);
}

/// A result [rows, cols] in the forms that are asked for.
inline void give_out(const float* y, std::int64_t rows, std::int64_t cols, float* out, kernels::gpu::Q8 q8,
                     kernels::gpu::Bf16* bf16) {
  if (q8.q != nullptr) quantize(y, cols, rows, cols, q8);
  if (bf16 != nullptr) to_bf16(y, rows * cols, bf16);
  if (out != nullptr && out != y) std::memcpy(out, y, static_cast<std::size_t>(rows * cols) * sizeof(float));
}

/// of(0) + of(1) + ... over 32 lanes, each in ascending order, and then the lanes by a tree.
template <typename Add>
float lane_sum(std::int64_t count, const Add& add) {
  float lanes[32] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i % 32] = add(i, lanes[i % 32]);
  for (int step = 16; step > 0; step /= 2)
    for (int l = 0; l < step; ++l) lanes[l] += lanes[l + step];
  return lanes[0];
}

}  // namespace millrace::simulated

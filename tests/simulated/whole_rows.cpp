// Ops of rows that all see each other, but for products: by plain loops, and norms by the processor.
#include "kernels/gpu/whole_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels.h"

namespace millrace::kernels::gpu {

namespace {

using simulated::at;
using simulated::cpu;

void turn(const TurnCall& call) {
  const std::int64_t half = call.rotary / 2, step = call.neox ? 1 : 2, distance = call.neox ? half : 1;
  for (std::int64_t r = 0; r < call.rows; ++r) {
    for (std::int64_t h = 0; h < call.heads; ++h) {
      float* const x = call.x + (r * call.heads + h) * call.head_dim + call.first;
      for (std::int64_t i = 0; i < half; ++i) {
        const float cos = call.cos_sin[2 * (r * half + i)], sin = call.cos_sin[2 * (r * half + i) + 1];
        float &near = x[step * i], &far = x[step * i + distance];
        const float a = near, b = far;
        near = std::fma(a, cos, -(b * sin));
        far = std::fma(a, sin, b * cos);
      }
    }
  }
}

void round_row(const float* x, std::int64_t cols, std::uint16_t* out, float* unit) {
  std::uint32_t most = 0;  // as integers magnitudes compare as they do as floats, and NaN is the largest
  for (std::int64_t c = 0; c < cols; ++c) most = std::max(most, std::bit_cast<std::uint32_t>(x[c]) & 0x7fffffffu);
  const int exponent = std::max(static_cast<int>(most >> 23) - 127, -113);
  const int up = most == 0 || exponent > 127 ? 0 : 13 - exponent;
  *unit = std::ldexp(1.0f, -up);
  for (std::int64_t c = 0; c < cols; ++c) out[c] = f32_to_f16(x[c] * std::ldexp(1.0f, up));
}

}  // namespace

Status layer_norm(const float* x, const std::byte* const* weight, const std::byte* const* bias, std::int32_t rows,
                  std::int32_t cols, float eps, float* out, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] { cpu().layer_norm(x, at(weight), at(bias), rows, cols, eps, out); });
}
Status norm_heads(float* x, const std::byte* const* weight, std::int32_t heads, std::int32_t head_dim, float eps,
                  device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    const std::vector<float> ones(static_cast<std::size_t>(head_dim), 1.0f);
    cpu().rms_norm(x, weight == nullptr ? ones.data() : at(weight), heads, head_dim, eps, x);
  });
}
Status turn_heads(const TurnCall& call, device::StreamRef stream) {
  if (call.first < 0 || call.first + call.rotary > call.head_dim) return simulated::refused();
  return simulated::launch(stream, call, turn);
}
Status clamp(float* x, float least, float most, std::int64_t n, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] < least ? least : x[i] > most ? most : x[i];
  });
}
Status standardize(float* x, const std::byte* const* bias, const std::byte* const* scale, std::int64_t rows,
                   std::int32_t cols, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t i = 0; i < rows * cols; ++i)
      x[i] = (bias == nullptr ? x[i] : x[i] - at(bias)[i % cols]) * at(scale)[i % cols];
  });
}
Status merge_rows(const float* x, std::int32_t rows, std::int32_t cols, std::int32_t merge, bool by_channel, float* out,
                  device::StreamRef stream) {
  if (merge <= 0) return simulated::refused();
  return simulated::enqueue(stream, [=] {
    const std::int64_t merged = std::int64_t{merge} * cols, n = rows / merge * merged;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t place = i % merged;
      out[i] = x[by_channel ? i - place + place % merge * cols + place / merge : i];
    }
  });
}
Status mean_rows(const float* x, std::int32_t rows, std::int32_t cols, std::int32_t merge, float* out,
                 device::StreamRef stream) {
  if (merge <= 0) return simulated::refused();
  return simulated::enqueue(stream, [=] {
    const std::int64_t n = std::int64_t{rows / merge} * cols;
    for (std::int64_t i = 0; i < n; ++i) {
      const float* const from = x + i / cols * merge * cols + i % cols;
      float sum = from[0];
      for (std::int64_t r = 1; r < merge; ++r) sum += from[r * cols];
      out[i] = sum / static_cast<float>(merge);
    }
  });
}
Status to_half_rows(const float* x, std::int32_t rows, std::int32_t cols, HalfRows out, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r) round_row(x + r * cols, cols, out.x + r * cols, out.unit + r);
  });
}

}  // namespace millrace::kernels::gpu

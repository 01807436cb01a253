// Ops that work row by row or element by element: the processor's, with its bits.
#include <algorithm>
#include <cmath>

#include "device/gpu.h"
#include "kernels.h"
#include "kernels/gpu/gates.h"
#include "kernels/gpu/heads.h"

namespace millrace::kernels::gpu {

namespace {

using simulated::at;
using simulated::cpu;

void normalize(const NormCall& call) {
  std::vector<float> y(static_cast<std::size_t>(call.cols));
  for (std::int64_t r = 0; r < call.rows; ++r) {
    const float* const x = call.x + (call.x_index != nullptr ? call.x_index[r] : r) * call.cols;
    cpu().rms_norm(x, at(call.weight), 1, call.cols, call.eps, y.data());
    const std::int64_t block = r * (call.cols / 32);
    simulated::give_out(y.data(), 1, call.cols, call.out == nullptr ? nullptr : call.out + r * call.cols,
                        call.out_q8.q == nullptr ? Q8() : Q8{call.out_q8.q + 32 * block, call.out_q8.scale + block},
                        call.out_bf16 == nullptr ? nullptr : call.out_bf16 + r * call.cols);
  }
}

void gate_normal(const GatedNormCall& call) {
  const std::int64_t cols = std::int64_t{call.heads} * call.head_dim;
  std::vector<float> normal(static_cast<std::size_t>(cols)), y(normal.size());
  for (std::int64_t r = 0; r < call.rows; ++r) {
    for (std::int64_t h = 0; h < call.heads; ++h)
      cpu().rms_norm(call.x + r * cols + h * call.head_dim, at(call.weight), 1, call.head_dim, call.eps,
                     normal.data() + h * call.head_dim);
    std::copy_n(call.gate + r * cols, cols, y.data());
    cpu().gate_mul(call.activation, 0, y.data(), normal.data(), cols);
    const std::int64_t block = r * (cols / 32);
    simulated::give_out(y.data(), 1, cols, call.out == nullptr ? nullptr : call.out + r * cols,
                        call.out_q8.q == nullptr ? Q8() : Q8{call.out_q8.q + 32 * block, call.out_q8.scale + block},
                        call.out_bf16 == nullptr ? nullptr : call.out_bf16 + r * cols);
  }
}

void activate_row(Activation activation, float* x, std::int64_t count) {
  const std::vector<float> ones(static_cast<std::size_t>(count), 1.0f);
  cpu().gate_mul(activation, 0, x, ones.data(), count);
}

void activate_all(const ActivateEntriesCall& call) {
  const std::int64_t begin = call.sorted == nullptr ? 0 : call.expert_first[0];
  const std::int64_t end = call.sorted == nullptr ? call.entries : call.expert_first[call.experts];
  std::vector<float> y(static_cast<std::size_t>(call.cols));
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t entry = call.sorted == nullptr ? i : call.sorted[i];
    float* const x = call.x + entry * call.cols;
    std::copy_n(x, call.cols, y.data());
    activate_row(call.activation, y.data(), call.cols);
    if (call.q8.q == nullptr) {
      std::copy(y.begin(), y.end(), x);
    } else {
      const std::int64_t block = entry * call.cols / 32;
      simulated::quantize(y.data(), call.cols, 1, call.cols, {call.q8.q + 32 * block, call.q8.scale + block});
    }
  }
}

}  // namespace

Status embed(const Matrix& table, const std::int32_t* tokens, std::int32_t rows, std::int32_t cols, float* out,
             device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r)
      decode_row(table.dtype, *table.address + tokens[r] * row_bytes(table.dtype, cols), cols, out + r * cols);
  });
}
Status rms_norm(const NormCall& call, device::StreamRef stream) { return simulated::launch(stream, call, normalize); }
Status rms_norm(const float* x, const std::int32_t* x_index, const std::byte* const* weight, std::int32_t rows,
                std::int32_t cols, float eps, float* out, Q8 q8, device::StreamRef stream) {
  return rms_norm(NormCall{x, x_index, weight, rows, cols, eps, out, q8, nullptr}, stream);
}
Status quantize_q8(const float* x, std::int64_t x_stride, std::int32_t rows, std::int32_t cols, Q8 out,
                   device::StreamRef stream) {
  return simulated::enqueue(stream, [=] { simulated::quantize(x, x_stride, rows, cols, out); });
}
Status to_bf16(const float* x, std::int64_t n, Bf16* out, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] { simulated::to_bf16(x, n, out); });
}
Status add(float* x, const float* y, std::int64_t n, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] { cpu().add(x, y, n); });
}
Status gate_mul(Activation activation, float limit, float* gate, const float* up, std::int64_t n,
                device::StreamRef stream) {
  return simulated::enqueue(stream, [=] { cpu().gate_mul(activation, limit, gate, up, n); });
}
Status gather_rows(const float* x, const std::int32_t* index, std::int32_t rows, std::int32_t cols, float* out,
                   device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r) std::copy_n(x + std::int64_t{index[r]} * cols, cols, out + r * cols);
  });
}

Status scale(float* x, float factor, std::int64_t n, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
  });
}
Status add_scaled(float* x, const float* y, float factor, std::int64_t n, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] { cpu().add_scaled(x, y, factor, n); });
}
Status temper(float* x, const std::int32_t* position, float scale, std::int32_t period, std::int32_t offset,
              std::int32_t rows, std::int32_t cols, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r) {
      const double periods = std::floor((static_cast<double>(position[r]) + offset) / period);
      const auto factor = static_cast<float>(1 + static_cast<double>(scale) * std::log(periods + 1));
      for (std::int64_t c = 0; c < cols; ++c) x[r * cols + c] *= factor;
    }
  });
}
Status gate_rows(Activation activation, float limit, float* gate, const float* up, std::int64_t up_stride,
                 std::int32_t rows, std::int32_t cols, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r)
      cpu().gate_mul(activation, limit, gate + r * cols, up + r * up_stride, cols);
  });
}
Status scale_by(float* x, const std::byte* const* scalar, const std::byte* const* bias, std::int64_t rows,
                std::int32_t cols, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      x[i] *= *at(scalar);
      if (bias != nullptr) x[i] += at(bias)[i % cols];
    }
  });
}
Status place_columns(const PlaceCall& call, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < call.rows; ++r) {
      float* const out = call.out + r * call.out_cols + call.first;
      std::copy_n(call.x + r * call.cols, call.cols, out);
      if (call.clear_behind) std::fill(out + call.cols, out + call.out_cols - call.first, 0.0f);
    }
  });
}
Status softcap(float* x, float cap, std::int64_t n, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] { cpu().softcap(x, cap, n); });
}

Status pick_heads(const PickCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, [](const PickCall& c) {
    const std::int64_t part = c.cols / c.heads;
    for (int o = 0; o < c.count; ++o)
      for (std::int64_t r = 0; r < c.rows; ++r)
        for (std::int64_t h = 0; h < c.heads; ++h)
          std::copy_n(c.x + r * c.cols + h * part + c.first[o], c.head_dim, c.out[o] + (r * c.heads + h) * c.head_dim);
  });
}
Status multiply(float* x, const float* y, std::int64_t n, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t i = 0; i < n; ++i) x[i] *= y[i];
  });
}
Status sigmoid_gate(float* x, const float* gate, std::int64_t n, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] { cpu().sigmoid_mul(x, gate, n); });
}
Status sigmoid_gate(const SigmoidGateCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, [](const SigmoidGateCall& c) {
    std::vector<float> y(c.x, c.x + 32 * c.blocks);
    cpu().sigmoid_mul(y.data(), c.gate, 32 * c.blocks);
    simulated::give_out(y.data(), c.blocks, 32, c.out, c.out_q8, c.out_bf16);
  });
}
Status sigmoid_gate_rows(float* x, const float* gate, std::int32_t rows, std::int32_t cols, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r) {
      float factor = 1;
      cpu().sigmoid_mul(&factor, gate + r, 1);
      for (std::int64_t c = 0; c < cols; ++c) x[r * cols + c] *= factor;
    }
  });
}
Status l2_norm_heads(float* x, std::int64_t cols, std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                     float eps, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r) cpu().l2_norm(x + r * cols, heads, head_dim, eps);
  });
}
Status time_step(float* decay, float* step, const std::byte* const* a, const std::byte* const* bias, std::int32_t rows,
                 std::int32_t cols, std::int32_t together, float bound, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t i = 0; i < std::int64_t{rows} * cols; ++i) {
      const float x = step[i] + at(bias)[i % cols], factor = at(a)[i % cols / together];
      if (bound != 0) {
        decay[i] = exp_f32(bound * sigmoid_f32(std::abs(factor) * x));
        continue;
      }
      const float value = softplus_f32(x);
      step[i] = value;
      decay[i] = exp_f32(factor * value);
    }
  });
}
Status rms_norm_groups(float* x, const std::byte* const* weight, std::int32_t rows, std::int32_t groups,
                       std::int32_t dim, float eps, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t i = 0; i < std::int64_t{rows} * groups; ++i)
      cpu().rms_norm(x + i * dim, at(weight) + i % groups * dim, 1, dim, eps, x + i * dim);
  });
}
Status gated_norm(const GatedNormCall& call, device::StreamRef stream) {
  if (call.head_dim % 32 != 0 || call.head_dim > kMostGatedHeadDim) return simulated::refused();
  return simulated::launch(stream, call, gate_normal);
}
Status activate(Activation activation, float* x, std::int64_t n, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] { activate_row(activation, x, n); });
}
Status xielu(const Xielu& shape, float* x, std::int64_t n, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] { cpu().xielu(shape, x, n); });
}
Status largest(const float* x, std::int32_t rows, std::int32_t cols, float* out, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r) out[r] = *std::max_element(x + r * cols, x + (r + 1) * cols);
  });
}
Status activate_entries(const ActivateEntriesCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, activate_all);
}

}  // namespace millrace::kernels::gpu

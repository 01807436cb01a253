// The small ops beside gated attention and layers with a state on the GPU: bit for bit what the CPU's kernels give.
#include "kernels/cuda/heads.h"

#include <gtest/gtest.h>

#include <vector>

#include "cuda/on_device.h"
#include "kernels/cuda/recurrent.h"

namespace millrace::kernels::cuda {
namespace {

using test::Array;
using test::Entry;
using test::normal_floats;
using test::ok;
using test::same_bits;

class CudaHeads : public test::OnDevice {
 protected:
  std::vector<float> floats(std::int64_t n, float scale = 1) {
    return normal_floats(static_cast<std::size_t>(n), random_, scale);
  }
  std::mt19937 random_{20261123};
  const kernels::Table& cpu_ = kernels::table(device::Isa::plain);
};

TEST_F(CudaHeads, PicksChannelsOfHeads) {
  for (const std::int64_t rows : {1, 3, 70}) {
    for (const std::int64_t heads : {1, 5, 16}) {
      for (const std::int64_t head_dim : {1, 2, 100, 256}) {
        const std::int64_t part = 2 * head_dim + 1, first = head_dim + 1, cols = heads * part;
        const auto x = floats(rows * cols);
        const Array<float> x_at(x), out(static_cast<std::size_t>(rows * heads * head_dim));
        ok(pick_heads(x_at.get(), cols, static_cast<std::int32_t>(rows), static_cast<std::int32_t>(heads),
                      static_cast<std::int32_t>(head_dim), static_cast<std::int32_t>(first), out.get(), nullptr));
        std::vector<float> want;
        for (std::int64_t i = 0; i < rows * heads; ++i)
          want.insert(want.end(), x.begin() + i * part + first, x.begin() + i * part + first + head_dim);
        EXPECT_TRUE(same_bits(out.host(), want)) << rows << " x " << heads << " x " << head_dim;
      }
    }
  }
}

TEST_F(CudaHeads, MultipliesAndGates) {
  for (const std::int64_t cols : {1, 7, 256, 1023}) {
    for (const std::int64_t rows : {1, 9}) {
      const auto x = floats(rows * cols), y = floats(rows * cols, 4), of_rows = floats(rows, 4);
      const Array<float> times(x), gated(x), gated_rows(x), y_at(y), of_rows_at(of_rows);
      ok(multiply(times.get(), y_at.get(), rows * cols, nullptr));
      ok(sigmoid_gate(gated.get(), y_at.get(), rows * cols, nullptr));
      ok(sigmoid_gate_rows(gated_rows.get(), of_rows_at.get(), static_cast<std::int32_t>(rows),
                           static_cast<std::int32_t>(cols), nullptr));
      std::vector<float> want_times = x, want_gated = x, want_rows = x;
      cpu_.sigmoid_mul(want_gated.data(), y.data(), rows * cols);
      for (std::size_t i = 0; i < x.size(); ++i) {
        want_times[i] *= y[i];
        want_rows[i] *= sigmoid_f32(of_rows[i / static_cast<std::size_t>(cols)]);
      }
      EXPECT_TRUE(same_bits(times.host(), want_times)) << rows << " x " << cols;
      EXPECT_TRUE(same_bits(gated.host(), want_gated)) << rows << " x " << cols;
      EXPECT_TRUE(same_bits(gated_rows.host(), want_rows)) << rows << " x " << cols;
    }
  }
}

TEST_F(CudaHeads, NormalisesTheFirstHeads) {
  for (const std::int64_t head_dim : {2, 31, 32, 100, 128, 256, 300}) {
    for (const std::int64_t heads : {1, 6, 32}) {
      const std::int64_t rows = 5, cols = heads * head_dim + 10;
      auto x = floats(rows * cols);
      std::fill_n(x.begin(), head_dim, 0.0f);
      const Array<float> x_at(x);
      ok(l2_norm_heads(x_at.get(), cols, static_cast<std::int32_t>(rows), static_cast<std::int32_t>(heads),
                       static_cast<std::int32_t>(head_dim), 1e-6f, nullptr));
      for (std::int64_t r = 0; r < rows; ++r) cpu_.l2_norm(x.data() + r * cols, heads, head_dim, 1e-6f);
      EXPECT_TRUE(same_bits(x_at.host(), x)) << heads << " x " << head_dim;
    }
  }
}

TEST_F(CudaHeads, StepsAndDecays) {
  for (const std::int64_t cols : {1, 32, 100}) {
    const std::int64_t rows = 41;
    auto step = floats(rows * cols, 30);
    for (std::size_t i = 0; i < step.size(); i += 3) step[i] /= 30;
    const auto a = floats(cols, 0.5f), bias = floats(cols);
    const Array<float> step_at(step), decay_at(step.size()), alone(step), a_at(a), bias_at(bias);
    const Entry a_entry(a_at.at_bytes()), bias_entry(bias_at.at_bytes());
    const auto run = [&](float* decay, float* x) {
      ok(time_step(decay, x, a_entry.get(), bias_entry.get(), static_cast<std::int32_t>(rows),
                   static_cast<std::int32_t>(cols), nullptr));
    };
    run(decay_at.get(), step_at.get());
    run(alone.get(), alone.get());
    std::vector<float> decay(step.size());
    for (std::size_t i = 0; i < step.size(); ++i) {
      const std::size_t c = i % static_cast<std::size_t>(cols);
      step[i] = softplus_f32(step[i] + bias[c]);
      decay[i] = exp_f32(a[c] * step[i]);
    }
    EXPECT_TRUE(same_bits(step_at.host(), step)) << cols;
    EXPECT_TRUE(same_bits(decay_at.host(), decay)) << cols;
    EXPECT_TRUE(same_bits(alone.host(), decay)) << cols;
  }
}

TEST_F(CudaHeads, Activates) {
  const auto x = floats(1025, 5);
  const std::vector<float> ones(x.size(), 1.0f);
  for (const Activation activation :
       {Activation::silu, Activation::gelu, Activation::relu_squared, Activation::clamped}) {
    const Array<float> x_at(x);
    ok(activate(activation, x_at.get(), static_cast<std::int64_t>(x.size()), nullptr));
    std::vector<float> want = x;
    cpu_.gate_mul(activation, want.data(), ones.data(), static_cast<std::int64_t>(want.size()));
    EXPECT_TRUE(same_bits(x_at.host(), want)) << static_cast<int>(activation);
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda

// The small ops beside gated attention and layers with a state on the GPU: bit for bit what the CPU's kernels give.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/on_device.h"
#include "kernels/cuda/launchers.h"
#include "kernels/gpu/offer.h"

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
        const auto size = static_cast<std::size_t>(rows * heads * head_dim);
        const Array<float> x_at(x), alone(size), one(size), other(size);
        const auto wanted = [&](std::int64_t from) {
          std::vector<float> want;
          for (std::int64_t i = 0; i < rows * heads; ++i)
            want.insert(want.end(), x.begin() + i * part + from, x.begin() + i * part + from + head_dim);
          return want;
        };
        PickCall call;
        call.x = x_at.get();
        call.cols = cols;
        call.rows = static_cast<std::int32_t>(rows);
        call.heads = static_cast<std::int32_t>(heads);
        call.head_dim = static_cast<std::int32_t>(head_dim);
        call.first[0] = static_cast<std::int32_t>(first);
        call.out[0] = alone.get();
        ok(pick_heads(call, nullptr));
        EXPECT_TRUE(same_bits(alone.host(), wanted(first))) << rows << " x " << heads << " x " << head_dim;
        call.count = 2;
        call.first[0] = 1;
        call.first[1] = static_cast<std::int32_t>(first);
        call.out[0] = one.get();
        call.out[1] = other.get();
        ok(pick_heads(call, nullptr));
        EXPECT_TRUE(same_bits(one.host(), wanted(1))) << rows << " x " << heads << " x " << head_dim;
        EXPECT_TRUE(same_bits(other.host(), wanted(first))) << rows << " x " << heads << " x " << head_dim;
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

/// Floats, int8 and bfloat16 of the same rows: at once, and made of the floats one after the other.
struct InForms {
  std::int64_t rows, cols;
  Array<float> floats;
  Array<std::byte> q8;
  Array<Bf16> bf16;

  InForms(std::int64_t rows, std::int64_t cols)
      : rows(rows),
        cols(cols),
        floats(static_cast<std::size_t>(rows * cols)),
        q8(q8_bytes(rows, cols)),
        bf16(static_cast<std::size_t>(rows * cols)) {}
  Q8 to_q8() const { return q8_at(q8.get(), rows, cols); }
  void make_others() const {
    ok(quantize_q8(floats.get(), cols, static_cast<std::int32_t>(rows), static_cast<std::int32_t>(cols), to_q8(),
                   nullptr));
    ok(to_bf16(floats.get(), rows * cols, bf16.get(), nullptr));
  }
};
void expect_same_forms(const InForms& got, const InForms& want) {
  EXPECT_TRUE(same_bits(got.floats.host(), want.floats.host()));
  EXPECT_TRUE(got.q8.host() == want.q8.host());
  EXPECT_TRUE(got.bf16.host() == want.bf16.host());
}

TEST_F(CudaHeads, GatesBlocksIntoEveryForm) {
  for (const std::int64_t cols : {32, 96, 4096}) {
    for (const std::int64_t rows : {1, 5, 77}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols);
      const auto x = floats(rows * cols, 3), gate = floats(rows * cols, 4);
      const Array<float> x_at(x), gate_at(gate);
      InForms want(rows, cols), got(rows, cols);
      want.floats.put(x);
      ok(sigmoid_gate(want.floats.get(), gate_at.get(), rows * cols, nullptr));
      want.make_others();
      SigmoidGateCall call;
      call.x = x_at.get();
      call.gate = gate_at.get();
      call.blocks = rows * cols / 32;
      call.out = got.floats.get();
      call.out_q8 = got.to_q8();
      call.out_bf16 = got.bf16.get();
      ok(sigmoid_gate(call, nullptr));
      expect_same_forms(got, want);
      EXPECT_TRUE(same_bits(x_at.host(), x));
      const InForms alone(rows, cols);  // in int8 alone
      call.out = nullptr;
      call.out_bf16 = nullptr;
      call.out_q8 = alone.to_q8();
      ok(sigmoid_gate(call, nullptr));
      EXPECT_TRUE(alone.q8.host() == want.q8.host());
    }
  }
}

TEST_F(CudaHeads, ANormLeavesEveryForm) {
  for (const std::int64_t cols : {32, 96, 2048, 4128, 16416}) {
    const std::int64_t rows = 3;
    SCOPED_TRACE(cols);
    const Array<float> x(floats(rows * cols, 3)), weight(floats(cols));
    const Entry entry(weight.at_bytes());
    InForms want(rows, cols), got(rows, cols);
    const auto n = [](std::int64_t count) { return static_cast<std::int32_t>(count); };
    ok(rms_norm(x.get(), nullptr, entry.get(), n(rows), n(cols), 1e-6f, want.floats.get(), {}, nullptr));
    want.make_others();
    NormCall call;
    call.x = x.get();
    call.weight = entry.get();
    call.rows = n(rows);
    call.cols = n(cols);
    call.eps = 1e-6f;
    call.out = got.floats.get();
    call.out_q8 = got.to_q8();
    call.out_bf16 = got.bf16.get();
    ok(rms_norm(call, nullptr));
    expect_same_forms(got, want);
    const InForms alone(rows, cols);
    call.out = nullptr;
    call.out_q8 = {};
    call.out_bf16 = alone.bf16.get();
    ok(rms_norm(call, nullptr));
    EXPECT_TRUE(alone.bf16.host() == want.bf16.host());
  }
}

TEST_F(CudaHeads, AGatedNormIsTheNormAndThenTheGate) {
  for (const std::int64_t head_dim : {32, 64, 96, 128, 160, 256, 288, 512}) {
    for (const std::int64_t heads : {1, 3, 32}) {
      for (const std::int64_t rows : {1, 2, 37}) {
        const Activation activation = heads == 3 ? Activation::gelu : Activation::silu;
        SCOPED_TRACE(testing::Message() << rows << " x " << heads << " x " << head_dim);
        const std::int64_t cols = heads * head_dim;
        const auto n = [](std::int64_t count) { return static_cast<std::int32_t>(count); };
        auto x = floats(rows * cols, 3);
        std::fill_n(x.begin(), head_dim, 0.0f);
        const Array<float> x_at(x), normal(x), weight(floats(head_dim)), gate(floats(rows * cols, 4));
        const Entry entry(weight.at_bytes());
        InForms want(rows, cols), got(rows, cols);
        ok(rms_norm(normal.get(), nullptr, entry.get(), n(rows * heads), n(head_dim), 1e-6f, normal.get(), {},
                    nullptr));
        want.floats.put(gate.host());
        ok(gate_rows(activation, 0, want.floats.get(), normal.get(), cols, n(rows), n(cols), nullptr));
        want.make_others();
        GatedNormCall call;
        call.x = x_at.get();
        call.gate = gate.get();
        call.weight = entry.get();
        call.rows = n(rows);
        call.heads = n(heads);
        call.head_dim = n(head_dim);
        call.eps = 1e-6f;
        call.activation = activation;
        call.out = got.floats.get();
        call.out_q8 = got.to_q8();
        call.out_bf16 = got.bf16.get();
        ok(gated_norm(call, nullptr));
        expect_same_forms(got, want);
        EXPECT_TRUE(same_bits(x_at.host(), x));
        call.out = gate.get();  // in place, and in floats alone
        call.out_q8 = {};
        call.out_bf16 = nullptr;
        ok(gated_norm(call, nullptr));
        EXPECT_TRUE(same_bits(gate.host(), want.floats.host()));
      }
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

TEST_F(CudaHeads, NormalisesPartsByWeightsOfTheirOwn) {
  constexpr int kThreads = 256, kLanes = 32;
  constexpr float kEps = 1e-5f;
  for (const std::int64_t dim : {16, 100, 256, 768, 4097}) {
    for (const std::int64_t groups : {1, 8}) {
      const std::int64_t rows = 3;
      auto x = floats(rows * groups * dim, 3);
      const auto weight = floats(groups * dim);
      const Array<float> x_at(x), weight_at(weight);
      const Entry entry(weight_at.at_bytes());
      ok(rms_norm_groups(x_at.get(), entry.get(), static_cast<std::int32_t>(rows), static_cast<std::int32_t>(groups),
                         static_cast<std::int32_t>(dim), kEps, nullptr));
      for (std::int64_t part = 0; part < rows * groups; ++part) {
        float* const from = x.data() + part * dim;
        const float* const by = weight.data() + part % groups * dim;
        float sums[kThreads] = {}, total = 0;
        for (std::int64_t i = 0; i < dim; ++i) sums[i % kThreads] = test::fused(from[i], from[i], sums[i % kThreads]);
        for (int warp = 0; warp < kThreads; warp += kLanes) {
          for (int step = kLanes / 2; step > 0; step /= 2)
            for (int l = 0; l < step; ++l) sums[warp + l] += sums[warp + l + step];
          total += sums[warp];
        }
        const float scale = 1.0f / std::sqrt(total / static_cast<float>(dim) + kEps);
        for (std::int64_t i = 0; i < dim; ++i) from[i] = from[i] * scale * by[i];
      }
      EXPECT_TRUE(same_bits(x_at.host(), x)) << groups << " x " << dim;
    }
  }
}

TEST_F(CudaHeads, StepsAndDecays) {
  for (const std::int64_t cols : {1, 32, 100}) {
    const std::int64_t rows = 41, together = cols % 5 == 0 ? 20 : 1;
    auto step = floats(rows * cols, 30);
    for (std::size_t i = 0; i < step.size(); i += 3) step[i] /= 30;
    const auto a = floats(cols / together, 0.5f), bias = floats(cols);
    const Array<float> step_at(step), decay_at(step.size()), alone(step), a_at(a), bias_at(bias);
    const Entry a_entry(a_at.at_bytes()), bias_entry(bias_at.at_bytes());
    const auto run = [&](float* decay, float* x, float bound = 0) {
      ok(time_step(decay, x, a_entry.get(), bias_entry.get(), static_cast<std::int32_t>(rows),
                   static_cast<std::int32_t>(cols), static_cast<std::int32_t>(together), bound, nullptr));
    };
    if (gpu::offer().channel_decays) {
      const Array<float> bounded_at(step.size()), given(step);
      run(bounded_at.get(), given.get(), -5);
      std::vector<float> bounded(step.size());
      for (std::size_t i = 0; i < step.size(); ++i) {
        const std::size_t c = i % static_cast<std::size_t>(cols);
        bounded[i] =
            exp_f32(-5 * sigmoid_f32(std::abs(a[c / static_cast<std::size_t>(together)]) * (step[i] + bias[c])));
      }
      EXPECT_TRUE(same_bits(bounded_at.host(), bounded)) << cols;
      EXPECT_TRUE(same_bits(given.host(), step)) << cols;
    }
    run(decay_at.get(), step_at.get());
    run(alone.get(), alone.get());
    std::vector<float> decay(step.size());
    for (std::size_t i = 0; i < step.size(); ++i) {
      const std::size_t c = i % static_cast<std::size_t>(cols);
      step[i] = softplus_f32(step[i] + bias[c]);
      decay[i] = exp_f32(a[c / static_cast<std::size_t>(together)] * step[i]);
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
    cpu_.gate_mul(activation, 0, want.data(), ones.data(), static_cast<std::int64_t>(want.size()));
    EXPECT_TRUE(same_bits(x_at.host(), want)) << static_cast<int>(activation);
  }
}

TEST_F(CudaHeads, XieluIsTheCpus) {
  if (!gpu::offer().rare_layers) GTEST_SKIP() << "refused by check_gpu()";
  auto x = floats(4099, 4);
  for (const float v : {0.0f, -0.0f, -1e-7f, -100.0f, 100.0f}) x.push_back(v);
  const Xielu shape{0.8f, 1.1f, 0.5f, -1e-6f};
  const Array<float> x_at(x);
  ok(xielu(shape, x_at.get(), static_cast<std::int64_t>(x.size()), nullptr));
  std::vector<float> want = x;
  cpu_.xielu(shape, want.data(), static_cast<std::int64_t>(want.size()));
  EXPECT_TRUE(same_bits(x_at.host(), want));
}

TEST_F(CudaHeads, FindsTheLargestOfEachRow) {
  if (!gpu::offer().rare_layers) GTEST_SKIP() << "refused by check_gpu()";
  for (const int rows : {1, 9, 70})
    for (const int cols : {1, 31, 128, 300}) {
      const auto x = floats(std::int64_t{rows} * cols, 3);
      const Array<float> x_at(x), out(static_cast<std::size_t>(rows));
      ok(largest(x_at.get(), rows, cols, out.get(), nullptr));
      std::vector<float> want;
      for (int r = 0; r < rows; ++r)
        want.push_back(*std::max_element(x.begin() + r * cols, x.begin() + (r + 1) * cols));
      EXPECT_TRUE(same_bits(out.host(), want)) << rows << " x " << cols;
    }
}

/// The experts' sum, the shared expert by its gate, the residual stream: as by three launches.
TEST_F(CudaHeads, CombinesExpertsWithASharedOne) {
  for (const std::int64_t cols : {1, 30, 132, 2048}) {
    for (const int kind : {0, 1, 2, 3}) {
      const bool residual = kind % 2 == 1, gates = kind >= 2;
      SCOPED_TRACE(testing::Message() << cols << (residual ? ", residual" : "") << (gates ? ", with a gate" : ""));
      const std::int64_t rows = 7, top_k = 8;
      const auto n = [](std::int64_t count) { return static_cast<std::int32_t>(count); };
      const Array<float> expert_out(floats(rows * top_k * cols)), weights(floats(rows * top_k)), gate(floats(rows, 4));
      Array<float> y(floats(rows * cols));
      const auto shared_floats = floats(rows * cols);
      const Array<float> shared(shared_floats), gated(shared_floats), sum(static_cast<std::size_t>(rows * cols)),
          want(y.host());
      ok(combine_experts(expert_out.get(), weights.get(), n(rows), n(top_k), n(cols), false, sum.get(), nullptr));
      if (gates) ok(sigmoid_gate_rows(gated.get(), gate.get(), n(rows), n(cols), nullptr));
      ok(add(sum.get(), gated.get(), rows * cols, nullptr));
      if (residual) ok(add(want.get(), sum.get(), rows * cols, nullptr));
      CombineCall call;
      call.expert_out = expert_out.get();
      call.weights = weights.get();
      call.shared = shared.get();
      if (gates) call.shared_gate = gate.get();
      call.rows = n(rows);
      call.top_k = call.places = n(top_k);
      call.shared_stride = cols;
      call.cols = n(cols);
      call.residual = residual;
      call.y = y.get();
      const std::vector<float> y_before = y.host();
      ok(combine(call, nullptr));
      EXPECT_TRUE(same_bits(y.host(), residual ? want.host() : sum.host()));
      // The shared one's behind the others of its row.
      std::vector<float> all;
      const std::vector<float> others = expert_out.host();
      for (std::int64_t r = 0; r < rows; ++r) {
        all.insert(all.end(), others.begin() + r * top_k * cols, others.begin() + (r + 1) * top_k * cols);
        all.insert(all.end(), shared_floats.begin() + r * cols, shared_floats.begin() + (r + 1) * cols);
      }
      const Array<float> all_at(all);
      call.expert_out = all_at.get();
      call.shared = all_at.get() + top_k * cols;
      call.places = n(top_k + 1);
      call.shared_stride = (top_k + 1) * cols;
      y.put(y_before);
      ok(combine(call, nullptr));
      EXPECT_TRUE(same_bits(y.host(), residual ? want.host() : sum.host()));
      EXPECT_TRUE(same_bits(shared.host(), shared_floats));
    }
  }
}

/// Of all entries, and of those of some experts: the others stay.
TEST_F(CudaHeads, ActivatesEntriesOfExperts) {
  for (const std::int64_t cols : {32, 160, 1856}) {
    for (const bool some : {false, true}) {
      SCOPED_TRACE(testing::Message() << cols << (some ? ", of some experts" : ""));
      const std::vector<std::int32_t> sorted{4, 0, 6, 1, 2, 5, 3}, first{0, 1, 1, 4, 7};  // of four experts
      const std::int32_t begin = some ? 1 : 0, experts = some ? 2 : 4;                    // of some: entries 0, 6 and 1
      const auto entries = static_cast<std::int64_t>(sorted.size());
      const auto x = floats(entries * cols, 3);
      const Array<float> in_place(x), kept(x);
      const Array<std::byte> q8(q8_bytes(entries, cols));
      const std::vector<std::byte> poison = q8.host();
      const Array<std::int32_t> sorted_at(sorted), first_at(first);
      ActivateEntriesCall call;
      call.x = in_place.get();
      call.entries = static_cast<std::int32_t>(entries);
      call.cols = static_cast<std::int32_t>(cols);
      call.experts = experts;
      if (some) call.sorted = sorted_at.get(), call.expert_first = first_at.get() + begin;
      ok(activate_entries(call, nullptr));
      call.x = kept.get();
      call.q8 = q8_at(q8.get(), entries, cols);
      ok(activate_entries(call, nullptr));

      std::vector<float> want = x;
      std::vector<std::byte> want_q8 = poison;
      const Q8 to = q8_at(want_q8.data(), entries, cols);
      const std::vector<float> ones(static_cast<std::size_t>(cols), 1.0f);
      for (std::int32_t place = some ? first[1] : 0; place < (some ? first[3] : entries); ++place) {
        const std::int64_t at = sorted[static_cast<std::size_t>(place)] * cols;
        cpu_.gate_mul(Activation::relu_squared, 0, want.data() + at, ones.data(), cols);
        std::vector<float> d(static_cast<std::size_t>(cols / 32));
        std::vector<std::int32_t> sums(static_cast<std::size_t>(cols / 16));
        cpu_.quantize_q8(want.data() + at, cols, 1, cols, {to.q + at, d.data(), sums.data()});
        for (std::size_t b = 0; b < d.size(); ++b) {
          const auto half = [&](std::size_t i) { return static_cast<std::int16_t>(sums[2 * b + i]); };
          const std::int32_t sum = sums[2 * b] + sums[2 * b + 1];
          to.scale[at / 32 + static_cast<std::int64_t>(b)] = {
              d[b], d[b] * static_cast<float>(sum), sum, {half(0), half(1)}};
        }
      }
      EXPECT_TRUE(same_bits(in_place.host(), want));
      EXPECT_TRUE(same_bits(kept.host(), x));
      EXPECT_TRUE(q8.host() == want_q8);
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda

// Gates, factors and routers on the GPU: bit for bit against the CPU's kernels, or a plain host version of the contract
// in gates.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

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

class CudaGates : public test::OnDevice {
 protected:
  std::mt19937 random_{20261122};
  const kernels::Table& cpu_ = kernels::table(device::Isa::plain);
};

TEST_F(CudaGates, GatesAndCapsAreTheCpusOverTheWholeRange) {
  std::vector<float> x;
  for (int i = 0; i <= 400'000; ++i) x.push_back(static_cast<float>(-40 + 80.0 * i / 400'000));
  for (const float v : {0.0f, -0.0f, 1e-40f, 1e20f, -1e20f}) x.push_back(v);
  auto up = normal_floats(x.size(), random_);
  for (float& u : up) u *= 5;  // some beyond what the clamped gate lets through
  const Array<float> up_at(up);
  const auto n = static_cast<std::int64_t>(x.size());
  for (const Activation activation :
       {Activation::silu, Activation::gelu, Activation::relu_squared, Activation::clamped, Activation::gelu_erf}) {
    const Array<float> gate(x), alone(x);
    std::vector<float> want = x, want_alone = x;
    ok(gate_mul(activation, 0, gate.get(), up_at.get(), n, nullptr));
    cpu_.gate_mul(activation, 0, want.data(), up.data(), n);
    EXPECT_TRUE(same_bits(gate.host(), want)) << "activation " << static_cast<int>(activation);
    ok(activate(activation, alone.get(), n, nullptr));
    cpu_.gate_mul(activation, 0, want_alone.data(), std::vector<float>(x.size(), 1.0f).data(), n);
    EXPECT_TRUE(same_bits(alone.host(), want_alone)) << "activation " << static_cast<int>(activation);
  }
  const Array<float> capped(x);
  ok(softcap(capped.get(), 30, n, nullptr));
  cpu_.softcap(x.data(), 30, n);
  EXPECT_TRUE(same_bits(capped.host(), x));
}

TEST_F(CudaGates, SiluKeepsWithinItsLimits) {
  if (!gpu::offer().rare_layers) GTEST_SKIP() << "refused by check_gpu()";
  std::vector<float> x;
  for (int i = 0; i <= 4001; ++i) x.push_back(static_cast<float>(-40 + 80.0 * i / 4001));
  for (const float v : {0.0f, -0.0f, 1e-40f, 1e20f, -1e20f, INFINITY, -INFINITY}) x.push_back(v);
  auto up = normal_floats(x.size(), random_);
  for (float& u : up) u *= 5;
  const Array<float> up_at(up);
  const auto n = static_cast<std::int64_t>(x.size());
  for (const Activation activation : {Activation::limited, Activation::bounded}) {
    for (const float limit : {0.4f, 7.0f, 16.0f}) {
      const Array<float> gate(x), rows(x);
      std::vector<float> want = x;
      ok(gate_mul(activation, limit, gate.get(), up_at.get(), n, nullptr));
      ok(gate_rows(activation, limit, rows.get(), up_at.get(), n, 1, static_cast<std::int32_t>(n), nullptr));
      cpu_.gate_mul(activation, limit, want.data(), up.data(), n);
      EXPECT_TRUE(same_bits(gate.host(), want)) << static_cast<int>(activation) << ", " << limit;
      EXPECT_TRUE(same_bits(rows.host(), want)) << static_cast<int>(activation) << ", " << limit;
    }
  }
}

TEST_F(CudaGates, Factors) {
  for (const std::size_t n : {1, 255, 256, 1023}) {
    const auto x = normal_floats(n, random_), y = normal_floats(n, random_);
    const Array<float> scaled(x), added(x), y_at(y);
    ok(scale(scaled.get(), 0.37f, static_cast<std::int64_t>(n), nullptr));
    ok(add_scaled(added.get(), y_at.get(), 0.37f, static_cast<std::int64_t>(n), nullptr));
    auto times = x, sum = x;
    for (float& v : times) v *= 0.37f;
    cpu_.add_scaled(sum.data(), y.data(), 0.37f, static_cast<std::int64_t>(n));
    EXPECT_TRUE(same_bits(scaled.host(), times));
    EXPECT_TRUE(same_bits(added.host(), sum));
  }
}

TEST_F(CudaGates, TempersByPosition) {
  const std::vector<std::int32_t> positions = {0, 6, 7, 8, 8191, 100'000};
  for (const std::int32_t offset : {0, 1}) {
    if (offset != 0 && !gpu::offer().rare_layers) continue;
    const std::int32_t rows = static_cast<std::int32_t>(positions.size()), cols = 300;
    const auto x = normal_floats(static_cast<std::size_t>(rows * cols), random_);
    const Array<float> x_at(x);
    const Array<std::int32_t> positions_at(positions);
    ok(temper(x_at.get(), positions_at.get(), 0.1f, 8, offset, rows, cols, nullptr));
    const std::vector<float> got = x_at.host();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double periods = (positions[i / static_cast<std::size_t>(cols)] + offset) / 8;
      const auto factor = static_cast<float>(1 + static_cast<double>(0.1f) * std::log(periods + 1));
      ASSERT_FLOAT_EQ(got[i], x[i] * factor) << i;
    }
  }
}

TEST_F(CudaGates, ScalesComeBeforeBiases) {
  constexpr std::int32_t kCols = 300;
  const auto bias = normal_floats(kCols, random_);
  const std::vector<float> scalar{0.37f};
  const Array<float> bias_at(bias), scalar_at(scalar);
  const Entry bias_entry(bias_at.at_bytes()), scalar_entry(scalar_at.at_bytes());
  for (const std::int64_t rows : {1, 3, 70}) {
    const auto x = normal_floats(static_cast<std::size_t>(rows * kCols), random_);
    const Array<float> scaled(x), both(x);
    ok(scale_by(scaled.get(), scalar_entry.get(), nullptr, rows, kCols, nullptr));
    ok(scale_by(both.get(), scalar_entry.get(), bias_entry.get(), rows, kCols, nullptr));
    auto times = x, sum = x;
    for (float& v : times) v *= 0.37f;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = times[i] + bias[i % kCols];
    EXPECT_TRUE(same_bits(scaled.host(), times));
    EXPECT_TRUE(same_bits(both.host(), sum));
  }
}

TEST_F(CudaGates, RowsOfOthersChannels) {
  constexpr std::int64_t kStride = 1200;
  for (const std::int64_t cols : {8, 256, 300}) {
    for (const std::int64_t rows : {1, 3, 70}) {
      const auto x = normal_floats(static_cast<std::size_t>(rows * cols), random_);
      const auto up = normal_floats(static_cast<std::size_t>(rows * kStride), random_);
      for (const Activation activation : {Activation::gelu, Activation::gelu_erf}) {
        const Array<float> gate(x), up_at(up);
        ok(gate_rows(activation, 0, gate.get(), up_at.get() + 2 * cols, kStride, static_cast<std::int32_t>(rows),
                     static_cast<std::int32_t>(cols), nullptr));
        std::vector<float> want = x;
        for (std::int64_t r = 0; r < rows; ++r)
          cpu_.gate_mul(activation, 0, want.data() + r * cols, up.data() + r * kStride + 2 * cols, cols);
        EXPECT_TRUE(same_bits(gate.host(), want)) << rows << " x " << cols;
      }
    }
  }
}

void keep_best_groups(const ChooseCall& call, std::vector<float>& by) {
  const auto each = by.size() / static_cast<std::size_t>(call.groups);
  std::vector<std::pair<float, int>> groups;  // the negative of the score: the best first, of equals the first
  for (int g = 0; g < call.groups; ++g) {
    std::vector<float> of(by.begin() + g * static_cast<std::ptrdiff_t>(each),
                          by.begin() + (g + 1) * static_cast<std::ptrdiff_t>(each));
    std::sort(of.rbegin(), of.rend());
    groups.emplace_back(-(of[0] + (each > 1 ? of[1] : 0.0f)), g);
  }
  std::sort(groups.begin(), groups.end());
  for (std::size_t g = static_cast<std::size_t>(call.groups_used); g < groups.size(); ++g)
    std::fill_n(by.begin() + groups[g].second * static_cast<std::ptrdiff_t>(each), each,
                -std::numeric_limits<float>::infinity());
}

/// The contract of choose(), a row.
void choose_plainly(const ChooseCall& call, std::vector<float> p, const std::vector<float>& bias,
                    const std::vector<float>& scales, std::int32_t* chosen, float* weights) {
  if (call.gating == ChooseCall::Gating::sigmoid)
    for (float& v : p) v = 1.0f / (1.0f + exp_f32(0.0f - v));
  if (call.gating == ChooseCall::Gating::softmax) {
    const float most = *std::max_element(p.begin(), p.end());
    float lanes[32] = {};
    for (std::size_t e = 0; e < p.size(); ++e) lanes[e % 32] += p[e] = exp_f32(p[e] - most);
    for (int half = 16; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    for (float& v : p) v /= lanes[0];
  }
  std::vector<float> by = p;
  for (std::size_t e = 0; e < bias.size(); ++e) by[e] += bias[e];
  if (call.groups > 1) keep_best_groups(call, by);
  std::vector<std::int32_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return by[static_cast<std::size_t>(a)] > by[static_cast<std::size_t>(b)];
  });
  float sum = 0;
  for (std::int32_t k = 0; k < call.top_k; ++k) {
    chosen[k] = order[static_cast<std::size_t>(k)];
    weights[k] = p[static_cast<std::size_t>(chosen[k])];
    if (call.gating == ChooseCall::Gating::softmax_chosen)
      weights[k] = exp_f32(weights[k] - p[static_cast<std::size_t>(order[0])]);
    if (call.gating == ChooseCall::Gating::sparse_mixer) {
      const float mine = weights[k];
      float lanes[32] = {};
      for (std::size_t e = 0; e < p.size(); ++e) {
        const bool taken = std::find(chosen, chosen + k, static_cast<std::int32_t>(e)) != chosen + k;
        if (!taken && !((mine - p[e]) / std::max(std::abs(p[e]), mine) > 0.02f)) lanes[e % 32] += exp_f32(p[e] - mine);
      }
      for (int half = 16; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      weights[k] = 1.0f / lanes[0];
    }
    sum += weights[k];
  }
  const bool divide = call.normalize || call.gating == ChooseCall::Gating::softmax_chosen;
  for (std::int32_t k = 0; k < call.top_k; ++k)
    weights[k] = (divide ? weights[k] / std::max(sum, 0x1p-14f) : weights[k]) * call.scale;
  for (std::int32_t k = 0; k < call.top_k && !scales.empty(); ++k)
    weights[k] *= scales[static_cast<std::size_t>(chosen[k])];
  for (std::int32_t k = 0; k < call.top_k && call.hidden_scale != nullptr; ++k)
    weights[k] *= scales[static_cast<std::size_t>(chosen[k])];
}

TEST_F(CudaGates, ChooseKeepsItsContract) {
  using Given = ChooseCall::Gating;
  for (const auto gating : {Given::softmax, Given::sigmoid, Given::softmax_chosen, Given::sparse_mixer})
    for (const int experts : {4, 32, 100, 256, 300, 1024})
      for (const bool biased : {false, true})
        for (const bool normalize : {false, true}) {
          SCOPED_TRACE(experts);
          if (gating == Given::sparse_mixer && (biased || !gpu::offer().rare_layers)) continue;
          const int rows = 9, top_k = std::min(experts, 8);
          auto scores = normal_floats(static_cast<std::size_t>(rows * experts), random_);
          if (gating == Given::sparse_mixer)  // some near the best, of either sign
            for (std::size_t i = 0; i < scores.size() / 2; ++i)
              scores[i] = (i / static_cast<std::size_t>(experts) % 2 == 0 ? 2.0f : -2.0f) + 0.03f * scores[i];
          std::fill_n(scores.begin(), experts, 0.5f);  // a row of ties
          const auto bias = biased ? normal_floats(static_cast<std::size_t>(experts), random_) : std::vector<float>();
          const Array<float> scores_at(scores), weights(static_cast<std::size_t>(rows * top_k));
          const Array<std::int32_t> chosen(static_cast<std::size_t>(rows * top_k));
          const Array<float> bias_at(biased ? bias : std::vector<float>{0});
          const Entry entry(bias_at.at_bytes());
          const auto scales =
              normalize ? normal_floats(static_cast<std::size_t>(experts), random_) : std::vector<float>();
          const Array<float> scales_at(normalize ? scales : std::vector<float>{0});
          const Entry scales_entry(scales_at.at_bytes());
          ChooseCall call;
          call.scores = scores_at.get();
          call.rows = rows;
          call.experts = experts;
          call.top_k = top_k;
          call.gating = gating;
          call.bias = biased ? entry.get() : nullptr;
          call.normalize = normalize;
          if (normalize) call.output_scale = scales_entry.get();
          if (normalize && biased) call.hidden_scale = scales_entry.get();
          if (biased && experts % 4 == 0 && experts >= 32)
            call.groups = experts == 300 ? 50 : std::min(64, experts / 4);
          if (call.groups > 1) call.groups_used = std::max(2, call.groups / 3);
          call.scale = 2.5f;
          call.chosen = chosen.get();
          call.weights = weights.get();
          ok(choose(call, nullptr));
          std::vector<std::int32_t> want_chosen(static_cast<std::size_t>(rows * top_k));
          std::vector<float> want(static_cast<std::size_t>(rows * top_k));
          for (int r = 0; r < rows; ++r)
            choose_plainly(call, {scores.begin() + r * experts, scores.begin() + (r + 1) * experts}, bias, scales,
                           want_chosen.data() + r * top_k, want.data() + r * top_k);
          EXPECT_EQ(chosen.host(), want_chosen);
          EXPECT_TRUE(same_bits(weights.host(), want));
        }
}

}  // namespace
}  // namespace millrace::kernels::cuda

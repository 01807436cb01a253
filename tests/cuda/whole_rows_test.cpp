// Ops of rows that all see each other, but for products: against their contract in whole_rows.h in double precision,
// and in every bit where no sums are made.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/on_device.h"
#include "kernels/cuda/launchers.h"
#include "tensor/codec.h"

namespace millrace::kernels::cuda {
namespace {

using test::Array;
using test::Entry;
using test::normal_floats;
using test::ok;
using test::same_bits;

class CudaWholeRows : public test::OnDevice {
 protected:
  std::vector<float> floats(std::int64_t n, float scale = 1) {
    return normal_floats(static_cast<std::size_t>(n), random_, scale);
  }
  std::mt19937 random_{20261129};
};

/// Every element within `share` of what is wanted, or of 1.
testing::AssertionResult near(const std::vector<float>& got, const std::vector<double>& want, double share) {
  if (got.size() != want.size()) return testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::abs(got[i] - want[i]) <= share * std::max(1.0, std::abs(want[i]))) continue;
    return testing::AssertionFailure() << "element " << i << ": " << got[i] << " where " << want[i] << " is wanted";
  }
  return testing::AssertionSuccess();
}

std::vector<double> layer_norm_plainly(const std::vector<float>& x, const std::vector<float>& weight,
                                       const std::vector<float>& bias, std::int64_t cols, double eps) {
  std::vector<double> out;
  for (auto row = x.begin(); row != x.end(); row += cols) {
    double sum = 0, squares = 0;
    for (std::int64_t c = 0; c < cols; ++c) sum += row[c];
    const double mean = sum / static_cast<double>(cols);
    for (std::int64_t c = 0; c < cols; ++c) squares += (row[c] - mean) * (row[c] - mean);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (std::int64_t c = 0; c < cols; ++c) {
      const auto i = static_cast<std::size_t>(c);
      out.push_back((row[c] - mean) * scale * weight[i] + (bias.empty() ? 0.0 : bias[i]));
    }
  }
  return out;
}

TEST_F(CudaWholeRows, LayerNorm) {
  constexpr float kEps = 1e-6f;
  for (const std::int64_t cols : {1, 7, 72, 100, 1024, 1152, 4304, 5000, 8192, 8193, 9000}) {
    for (const std::int64_t rows : {1, 37}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols);
      auto x = floats(rows * cols, 3);
      for (float& v : x) v += 5;  // a mean that is not small
      const auto weight = floats(cols), bias = floats(cols);
      const Array<float> x_at(x), in_place(x), alone(x), out(x.size()), weight_at(weight), bias_at(bias);
      const Entry weight_entry(weight_at.at_bytes()), bias_entry(bias_at.at_bytes());
      const auto run = [&](const float* from, const Entry* by, std::int64_t count, float* to) {
        ok(layer_norm(from, weight_entry.get(), by == nullptr ? nullptr : by->get(), static_cast<std::int32_t>(count),
                      static_cast<std::int32_t>(cols), kEps, to, nullptr));
      };
      run(x_at.get(), &bias_entry, rows, out.get());
      const auto got = out.host();
      EXPECT_TRUE(near(got, layer_norm_plainly(x, weight, bias, cols, kEps), 2e-5));
      run(in_place.get(), &bias_entry, rows, in_place.get());
      EXPECT_TRUE(same_bits(in_place.host(), got));
      run(x_at.get(), nullptr, rows, out.get());
      EXPECT_TRUE(near(out.host(), layer_norm_plainly(x, weight, {}, cols, kEps), 2e-5));
      // A row among many and the same row alone. Rows begin at multiples of 16 bytes where they are read so.
      run(x_at.get() + (rows - 1) * cols, &bias_entry, 1, alone.get());
      const auto last = alone.host();
      EXPECT_TRUE(same_bits({last.begin(), last.begin() + cols}, {got.end() - cols, got.end()}));
    }
  }
}

TEST_F(CudaWholeRows, NormsOfHeads) {
  for (const std::int64_t head_dim : {1, 31, 72, 80, 128, 256, 300}) {
    for (const std::int64_t heads : {1, 7, 16, 333}) {
      for (const bool weighted : {true, false}) {
        const auto x = floats(heads * head_dim, 2), weight = floats(head_dim);
        const Array<float> x_at(x), weight_at(weight);
        const Entry entry(weight_at.at_bytes());
        ok(norm_heads(x_at.get(), weighted ? entry.get() : nullptr, static_cast<std::int32_t>(heads),
                      static_cast<std::int32_t>(head_dim), 1e-6f, nullptr));
        std::vector<double> want;
        for (auto head = x.begin(); head != x.end(); head += head_dim) {
          double squares = 0;
          for (std::int64_t c = 0; c < head_dim; ++c) squares += static_cast<double>(head[c]) * head[c];
          const double scale = 1 / std::sqrt(squares / static_cast<double>(head_dim) + 1e-6);
          for (std::int64_t c = 0; c < head_dim; ++c)
            want.push_back(head[c] * scale * (weighted ? weight[static_cast<std::size_t>(c)] : 1.0f));
        }
        EXPECT_TRUE(near(x_at.host(), want, 4e-6)) << heads << " x " << head_dim;
      }
    }
  }
}

TEST_F(CudaWholeRows, TurnsHeads) {
  struct Shape {
    std::int32_t rows, heads, head_dim, rotary, first;
  };
  for (const Shape& s : {Shape{1, 1, 2, 2, 0}, Shape{37, 16, 72, 72, 0}, Shape{5, 3, 80, 40, 40},
                         Shape{70, 12, 64, 32, 0}, Shape{3, 2, 96, 48, 16}}) {
    for (const bool neox : {false, true}) {
      const std::int64_t half = s.rotary / 2;
      const auto x = floats(std::int64_t{s.rows} * s.heads * s.head_dim), cos_sin = floats(s.rows * half * 2);
      const Array<float> x_at(x), cos_sin_at(cos_sin);
      TurnCall call;
      call.x = x_at.get();
      call.cos_sin = cos_sin_at.get();
      call.rows = s.rows, call.heads = s.heads, call.head_dim = s.head_dim;
      call.rotary = s.rotary, call.first = s.first;
      call.neox = neox;
      ok(turn_heads(call, nullptr));
      std::vector<float> want = x;
      for (std::int64_t h = 0; h < std::int64_t{s.rows} * s.heads; ++h) {
        for (std::int64_t i = 0; i < half; ++i) {
          const float* const turn = cos_sin.data() + 2 * (h / s.heads * half + i);
          float* const head = want.data() + h * s.head_dim + s.first;
          float &a = head[neox ? i : 2 * i], &b = head[neox ? i + half : 2 * i + 1];
          const float was = a;
          a = test::fused(was, turn[0], -(b * turn[1]));
          b = test::fused(was, turn[1], b * turn[0]);
        }
      }
      EXPECT_TRUE(same_bits(x_at.host(), want)) << s.rows << " x " << s.heads << " x " << s.head_dim;
    }
  }
}

TEST_F(CudaWholeRows, ClampsAndStandardizes) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t cols : {1, 7, 256, 1023}) {
    for (const std::int64_t rows : {1, 9}) {
      auto x = floats(rows * cols);
      x[0] = rows == 1 ? kNan : kInfinity;
      const auto bias = floats(cols), factor = floats(cols);
      const Array<float> clamped(x), standard(x), scaled(x), bias_at(bias), factor_at(factor);
      const Entry bias_entry(bias_at.at_bytes()), factor_entry(factor_at.at_bytes());
      ok(clamp(clamped.get(), -0.5f, 0.75f, rows * cols, nullptr));
      ok(standardize(standard.get(), bias_entry.get(), factor_entry.get(), rows, static_cast<std::int32_t>(cols),
                     nullptr));
      ok(standardize(scaled.get(), nullptr, factor_entry.get(), rows, static_cast<std::int32_t>(cols), nullptr));
      std::vector<float> want = x, want_standard = x, want_scaled = x;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t c = i % static_cast<std::size_t>(cols);
        want[i] = x[i] < -0.5f ? -0.5f : x[i] > 0.75f ? 0.75f : x[i];
        want_standard[i] = (x[i] - bias[c]) * factor[c];
        want_scaled[i] = x[i] * factor[c];
      }
      EXPECT_TRUE(same_bits(clamped.host(), want)) << rows << " x " << cols;
      EXPECT_TRUE(same_bits(standard.host(), want_standard)) << rows << " x " << cols;
      EXPECT_TRUE(same_bits(scaled.host(), want_scaled)) << rows << " x " << cols;
    }
  }
}

TEST_F(CudaWholeRows, MergesRows) {
  for (const std::int32_t cols : {1, 5, 72, 1152}) {
    for (const std::int32_t merge : {1, 2, 4, 9}) {
      for (const std::int32_t groups : {1, 11}) {
        SCOPED_TRACE(testing::Message() << groups << " times " << merge << " rows of " << cols);
        const std::int32_t rows = groups * merge;
        const auto x = floats(std::int64_t{rows} * cols);
        const Array<float> x_at(x), side(x.size()), channels(x.size()),
            mean(x.size() / static_cast<std::size_t>(merge));
        ok(merge_rows(x_at.get(), rows, cols, merge, false, side.get(), nullptr));
        ok(merge_rows(x_at.get(), rows, cols, merge, true, channels.get(), nullptr));
        ok(mean_rows(x_at.get(), rows, cols, merge, mean.get(), nullptr));
        std::vector<float> want, want_mean;
        for (std::int64_t g = 0; g < groups; ++g) {
          for (std::int64_t c = 0; c < cols; ++c) {
            float sum = 0;
            for (std::int64_t m = 0; m < merge; ++m) {
              want.push_back(x[static_cast<std::size_t>((g * merge + m) * cols + c)]);
              sum += want.back();
            }
            want_mean.push_back(sum / static_cast<float>(merge));
          }
        }
        EXPECT_TRUE(same_bits(side.host(), x));
        EXPECT_TRUE(same_bits(channels.host(), want));
        EXPECT_TRUE(same_bits(mean.host(), want_mean));
      }
    }
  }
}

TEST_F(CudaWholeRows, HalfRows) {
  constexpr float kSizes[] = {1, 1e-3f, 1e4f, 1e30f, 1e-30f, 0, 3e38f};
  for (const std::int64_t cols : {8, 9, 1152, 4304}) {
    constexpr std::int64_t kRows = 21;
    auto x = floats(kRows * cols);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = std::clamp(x[i], -1.0f, 1.0f) * kSizes[i / static_cast<std::size_t>(cols) % std::size(kSizes)];
    x[static_cast<std::size_t>(cols)] = std::numeric_limits<float>::infinity();
    x[static_cast<std::size_t>(3 * cols - 1)] = std::numeric_limits<float>::quiet_NaN();
    const Array<float> x_at(x), unit(static_cast<std::size_t>(kRows));
    const Array<std::uint16_t> half(x.size());
    ok(to_half_rows(x_at.get(), kRows, static_cast<std::int32_t>(cols), {half.get(), unit.get()}, nullptr));
    const auto halves = half.host();
    const auto units = unit.host();
    for (std::size_t r = 0; r < static_cast<std::size_t>(kRows); ++r) {
      SCOPED_TRACE(testing::Message() << "row " << r << " of " << cols);
      const std::size_t first = r * static_cast<std::size_t>(cols);
      float most = 0, half_most = 0;
      bool finite = true, half_finite = true;
      for (std::size_t i = first; i < first + static_cast<std::size_t>(cols); ++i) {
        finite &= std::isfinite(x[i]), half_finite &= std::isfinite(f16_to_f32(halves[i]));
        most = std::max(most, std::abs(x[i]));
        half_most = std::max(half_most, std::abs(f16_to_f32(halves[i])));
      }
      EXPECT_EQ(finite, half_finite);
      int exponent = 0;
      EXPECT_EQ(std::frexp(units[r], &exponent), 0.5f);  // a power of two
      if (!finite) continue;
      if (most == 0) {
        EXPECT_EQ(units[r], 1.0f);
      } else {
        EXPECT_GE(most / units[r], 0x1p13f);
        EXPECT_LT(most / units[r], 0x1p14f);
      }
      for (std::size_t i = first; i < first + static_cast<std::size_t>(cols); ++i)
        ASSERT_EQ(halves[i], f32_to_f16(x[i] / units[r])) << "element " << i;
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda

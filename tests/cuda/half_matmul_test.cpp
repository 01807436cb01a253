// matmul_half(): against sums in double precision of the f16 that its inputs and weights are rounded to, and that a
// row's bits do not depend on what shares the launch.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
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

/// Random weights with a bias, some of them too large or too small for f16 where they are bfloat16.
class Weights {
 public:
  Weights(DType dtype, std::int64_t rows, std::int64_t cols, bool biased, std::mt19937& random)
      : dtype_(dtype),
        rows_(rows),
        bias_(biased ? normal_floats(static_cast<std::size_t>(rows), random) : std::vector<float>()) {
    const auto from = normal_floats(static_cast<std::size_t>(rows * cols), random, 0.05f);
    std::vector<std::uint16_t> bits;
    for (const float w : from) bits.push_back(dtype == DType::bf16 ? f32_to_bf16(w) : f32_to_f16(w));
    if (dtype == DType::bf16) bits.front() = f32_to_bf16(-1e6f), bits.back() = f32_to_bf16(1e-7f);
    for (const std::uint16_t w : bits) {
      const float value = dtype == DType::bf16 ? bf16_to_f32(w) : f16_to_f32(w);
      values_.push_back(f16_to_f32(f32_to_f16(std::fmin(std::fmax(value, -65504.0f), 65504.0f))));
    }
    at_.emplace(bits);
    entry_.emplace(at_->at_bytes());
    if (!biased) return;
    bias_at_.emplace(bias_);
    bias_entry_.emplace(bias_at_->at_bytes());
  }

  Product product(float* y, std::int64_t y_stride) const {
    Product product;
    product.weight = {entry_->get(), dtype_, static_cast<std::int32_t>(rows_)};
    product.bias = bias_entry_ ? bias_entry_->get() : nullptr;
    product.y = y;
    product.y_stride = y_stride;
    return product;
  }
  const float* row(std::int64_t n, std::int64_t cols) const { return values_.data() + n * cols; }
  double bias(std::int64_t n) const { return bias_.empty() ? 0.0 : bias_[static_cast<std::size_t>(n)]; }

 private:
  DType dtype_;
  std::int64_t rows_;
  std::vector<float> bias_, values_;
  std::optional<Array<std::uint16_t>> at_;
  std::optional<Entry> entry_, bias_entry_;
  std::optional<Array<float>> bias_at_;
};

/// Rows in both forms.
struct Inputs {
  std::int64_t rows, cols;
  Array<std::byte> memory;
  std::vector<double> values;  // of the f16, times the unit

  Inputs(std::int64_t rows, std::int64_t cols, std::mt19937& random)
      : rows(rows), cols(cols), memory(half_rows_bytes(rows, cols)) {
    auto x = normal_floats(static_cast<std::size_t>(rows * cols), random);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] *= std::ldexp(1.0f, static_cast<int>(i / static_cast<std::size_t>(cols) % 9) - 4);
    const Array<float> at(x);
    ok(to_half_rows(at.get(), static_cast<std::int32_t>(rows), static_cast<std::int32_t>(cols), half(0), nullptr));
    const std::vector<std::byte> bytes = memory.host();
    const HalfRows host = half_rows_at(const_cast<std::byte*>(bytes.data()), rows, cols);
    for (std::size_t i = 0; i < x.size(); ++i)
      values.push_back(static_cast<double>(f16_to_f32(host.x[i])) * host.unit[i / static_cast<std::size_t>(cols)]);
  }
  HalfRows half(std::int64_t first) const {
    const HalfRows all = half_rows_at(memory.get(), rows, cols);
    return {all.x + first * cols, all.unit + first};
  }
  MatmulCall call(std::int64_t count) const {
    MatmulCall call;
    call.cols = static_cast<std::int32_t>(cols);
    call.x_rows = static_cast<std::int32_t>(count);
    return call;
  }
};

/// A sum, and what its rounding errors are at most.
struct Wanted {
  double value = 0, error = 0;
};

Wanted dot(const Inputs& x, std::int64_t row, const Weights& weights, std::int64_t n) {
  const double* const from = x.values.data() + row * x.cols;
  const float* const w = weights.row(n, x.cols);
  double sum = 0, sizes = 0;
  for (std::int64_t c = 0; c < x.cols; ++c) sum += from[c] * w[c], sizes += std::abs(from[c] * w[c]);
  const double bias = weights.bias(n), steps = static_cast<double>(x.cols) / 16 + 2;
  return {sum + bias, (sizes + std::abs(bias)) * steps * 0x1p-20};
}

constexpr double kLimit = 0.5;  // of Activation::limited

double gated_plainly(Activation activation, double g, double u) {
  if (activation == Activation::silu) return g / (1 + std::exp(-g)) * u;
  if (activation == Activation::gelu_erf) return 0.5 * g * (1 + std::erf(g / std::sqrt(2.0))) * u;
  if (activation == Activation::limited)
    return std::min(g / (1 + std::exp(-g)), kLimit) * std::clamp(u, -kLimit, kLimit);
  const double v = std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g);
  return g / (1 + std::exp(-2 * v)) * u;
}

class CudaHalfMatmul : public test::OnDevice {
 protected:
  std::mt19937 random_{20261130};
};

struct Shape {
  std::int64_t x_rows, rows, cols;
};
// Tiles of both sizes, full ones and others; the last two have more of the large than a GPU has multiprocessors.
constexpr Shape kShapes[] = {{1, 1, 8},      {2, 3, 16},      {3, 65, 24},     {17, 64, 40},     {64, 129, 72},
                             {65, 40, 1152}, {130, 33, 4304}, {300, 70, 1160}, {129, 11000, 72}, {300, 8191, 40}};

TEST_F(CudaHalfMatmul, StoresAndAdds) {
  for (const Shape& s : kShapes) {
    const Inputs x(s.x_rows, s.cols, random_);
    for (const DType dtype : {DType::f16, DType::bf16}) {
      for (const bool biased : {false, true}) {
        SCOPED_TRACE(testing::Message() << s.x_rows << " x " << s.rows << " x " << s.cols << ", " << info(dtype).name);
        const Weights weights(dtype, s.rows, s.cols, biased, random_);
        const std::int64_t stride = s.rows + (biased ? 3 : s.rows % 2);  // where it is even, two floats go at once
        const auto before = normal_floats(static_cast<std::size_t>(s.x_rows * stride), random_);
        const Array<float> stored(before), added(before);
        MatmulCall call = x.call(s.x_rows);
        call.count = 1;
        call.products[0] = weights.product(stored.get(), stride);
        ok(matmul_half(call, x.half(0), nullptr));
        call.effect = Effect::add;
        call.products[0].y = added.get();
        ok(matmul_half(call, x.half(0), nullptr));
        const auto got = stored.host(), sum = added.host();
        for (std::int64_t r = 0; r < s.x_rows; ++r) {
          for (std::int64_t n = 0; n < stride; ++n) {
            const auto i = static_cast<std::size_t>(r * stride + n);
            if (n >= s.rows) {
              ASSERT_EQ(got[i], before[i]) << "between rows";
              ASSERT_EQ(sum[i], before[i]) << "between rows";
              continue;
            }
            const Wanted want = dot(x, r, weights, n);
            ASSERT_NEAR(got[i], want.value, want.error) << r << ", " << n;
            ASSERT_EQ(sum[i], before[i] + got[i]) << r << ", " << n;
          }
        }
      }
    }
  }
}

TEST_F(CudaHalfMatmul, Gates) {
  for (const Shape& s : kShapes) {
    const Inputs x(s.x_rows, s.cols, random_);
    for (const auto& [gate_dtype, up_dtype] :
         {std::pair{DType::f16, DType::f16}, std::pair{DType::bf16, DType::bf16}, std::pair{DType::f16, DType::bf16},
          std::pair{DType::bf16, DType::f16}}) {
      SCOPED_TRACE(testing::Message() << s.x_rows << " x " << s.rows << " x " << s.cols);
      const bool biased = gate_dtype == up_dtype;
      const Weights gate(gate_dtype, s.rows, s.cols, biased, random_), up(up_dtype, s.rows, s.cols, true, random_);
      const auto size = static_cast<std::size_t>(s.x_rows * s.rows);
      const Array<float> y(size), g(size), u(size);
      MatmulCall call = x.call(s.x_rows);
      call.count = 2;
      call.products[0] = gate.product(g.get(), s.rows);
      call.products[1] = up.product(u.get(), s.rows);
      ok(matmul_half(call, x.half(0), nullptr));
      const auto gates = g.host(), ups = u.host();  // the same sums, alone
      call.effect = Effect::gated;
      call.products[0].y = y.get();
      call.products[1].y = nullptr;
      for (const Activation activation :
           {Activation::silu, Activation::gelu, Activation::gelu_erf, Activation::limited}) {
        call.activation = activation;
        call.limit = static_cast<float>(kLimit);
        ok(matmul_half(call, x.half(0), nullptr));
        const auto got = y.host();
        for (std::size_t i = 0; i < size; ++i) {
          const double want = gated_plainly(activation, gates[i], ups[i]);
          ASSERT_NEAR(got[i], want, 1e-5 * std::abs(want) + 2e-7 * std::abs(gates[i] * ups[i]))
              << "activation " << static_cast<int>(activation) << ", element " << i;
        }
      }
    }
  }
}

TEST_F(CudaHalfMatmul, SeveralProductsOfOneInput) {
  const Inputs x(77, 136, random_);
  const Weights one(DType::f16, 72, 136, true, random_), two(DType::bf16, 31, 136, false, random_),
      three(DType::f16, 200, 136, true, random_);
  const Array<float> together[] = {Array<float>(77 * 72), Array<float>(77 * 31), Array<float>(77 * 200)};
  const Weights* const all[] = {&one, &two, &three};
  constexpr std::int64_t kRows[] = {72, 31, 200};
  MatmulCall call = x.call(77);
  call.count = 3;
  for (int p = 0; p < 3; ++p) call.products[p] = all[p]->product(together[p].get(), kRows[p]);
  ok(matmul_half(call, x.half(0), nullptr));
  for (int p = 0; p < 3; ++p) {
    const Array<float> alone(static_cast<std::size_t>(77 * kRows[p]));
    MatmulCall single = x.call(77);
    single.count = 1;
    single.products[0] = all[p]->product(alone.get(), kRows[p]);
    ok(matmul_half(single, x.half(0), nullptr));
    EXPECT_TRUE(same_bits(together[p].host(), alone.host())) << "product " << p;
  }
}

/// Tiles of both sizes, and a pair's, give a row the same bits, whatever its place in them.
TEST_F(CudaHalfMatmul, ARowDependsOnNothingButItself) {
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{8200, 136}, {70, 1160}}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      constexpr std::int64_t kRows = 300;
      const Inputs x(kRows, cols, random_);
      const Weights weights(dtype, rows, cols, true, random_), up(dtype, rows, cols, false, random_);
      for (const bool pair : {false, true}) {
        const auto run = [&, rows = rows](std::int64_t first, std::int64_t count) {
          const Array<float> y(static_cast<std::size_t>(count * rows));
          MatmulCall call = x.call(count);
          call.count = pair ? 2 : 1;
          call.effect = pair ? Effect::gated : Effect::store;
          call.products[0] = weights.product(y.get(), rows);
          call.products[1] = up.product(nullptr, rows);
          ok(matmul_half(call, x.half(first), nullptr));
          return y.host();
        };
        const auto all = run(0, kRows);
        for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 1},
                                           {3, 1},
                                           {299, 1},
                                           {5, 7},
                                           {64, 64},
                                           {31, 65},
                                           {100, 129},
                                           {1, 299}}) {
          const std::vector<float> want(all.begin() + first * rows, all.begin() + (first + count) * rows);
          EXPECT_TRUE(same_bits(run(first, count), want)) << count << " rows from " << first;
        }
      }
    }
  }
}

TEST_F(CudaHalfMatmul, WhatIsNotFiniteStaysInItsRow) {
  constexpr std::int64_t kRows = 5, kCols = 40, kOut = 70;
  auto x = normal_floats(kRows * kCols, random_);
  x[kCols] = std::numeric_limits<float>::infinity();
  x[3 * kCols + 39] = std::numeric_limits<float>::quiet_NaN();
  const Array<float> x_at(x), y(kRows * kOut);
  const Array<std::byte> memory(half_rows_bytes(kRows, kCols));
  const HalfRows half = half_rows_at(memory.get(), kRows, kCols);
  ok(to_half_rows(x_at.get(), kRows, kCols, half, nullptr));
  const Weights weights(DType::f16, kOut, kCols, false, random_);
  MatmulCall call;
  call.cols = kCols;
  call.x_rows = kRows;
  call.count = 1;
  call.products[0] = weights.product(y.get(), kOut);
  ok(matmul_half(call, half, nullptr));
  const auto got = y.host();
  for (std::int64_t i = 0; i < kRows * kOut; ++i)
    EXPECT_EQ(std::isfinite(got[static_cast<std::size_t>(i)]), i / kOut != 1 && i / kOut != 3) << i;
}

TEST_F(CudaHalfMatmul, RefusesWhatItHasNot) {
  const Inputs x(3, 40, random_);
  const Weights weights(DType::f16, 5, 40, false, random_);
  const Array<float> y(15);
  MatmulCall call = x.call(3);
  call.count = 1;
  call.products[0] = weights.product(y.get(), 5);
  MatmulCall other = call;
  other.products[0].weight.dtype = DType::f32;
  EXPECT_EQ(matmul_half(other, x.half(0), nullptr), cudaErrorInvalidValue);
  other = call;
  other.cols = 36;
  EXPECT_EQ(matmul_half(other, x.half(0), nullptr), cudaErrorInvalidValue);
  other = call;
  Bf16 somewhere = 0;
  other.y_bf16 = &somewhere;
  EXPECT_EQ(matmul_half(other, x.half(0), nullptr), cudaErrorInvalidValue);
  other = call;
  other.effect = Effect::gated;
  EXPECT_EQ(matmul_half(other, x.half(0), nullptr), cudaErrorInvalidValue);
  call.x_rows = 0;
  ok(matmul_half(call, x.half(0), nullptr));
}

}  // namespace
}  // namespace millrace::kernels::cuda

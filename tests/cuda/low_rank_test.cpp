// What adapters add to products: against its contract in low_rank.h, in double precision, and rows alone in every bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "cuda/on_device.h"
#include "kernels/cuda/launchers.h"
#include "tensor/codec.h"

namespace millrace::kernels::cuda {
namespace {

using test::Array;
using test::normal_floats;
using test::ok;

class CudaLowRank : public test::OnDevice {
 protected:
  std::vector<float> floats(std::int64_t n, float scale) {
    return normal_floats(static_cast<std::size_t>(n), random_, scale);
  }
  std::mt19937 random_{20261130};
};

/// Rows of `cols` floats in a dtype; the floats become what they are then.
std::vector<std::byte> encoded(std::vector<float>& rows, std::int64_t cols, DType dtype) {
  const std::int64_t count = std::ssize(rows) / cols, bytes = row_bytes(dtype, cols);
  std::vector<std::byte> all(static_cast<std::size_t>(count * bytes));
  for (std::int64_t i = 0; i < count; ++i) {
    encode_row(dtype, rows.data() + i * cols, cols, all.data() + i * bytes);
    decode_row(dtype, all.data() + i * bytes, cols, rows.data() + i * cols);
  }
  return all;
}

/// One matrix's halves, on the host and on the device.
struct Half {
  std::vector<float> a, b;  // [rank, cols], [rank, stride]
  std::int32_t rank = 0, rows = 0;
  std::int64_t stride = 0;
  DType dtype = DType::f32;
  float factor = 1;
  std::vector<std::byte> encoded;
};

TEST_F(CudaLowRank, AddsToTheRowsThatHaveAScale) {
  const std::int32_t ranks[] = {16, 1, 37}, outs[] = {256, 100, 5150};
  const DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
  for (const std::int32_t cols : {32, 100, 4096}) {
    for (const std::int32_t x_rows : {1, 2, 4, 5, 8, 37, 70}) {
      for (const int count : {1, 3}) {
        SCOPED_TRACE(testing::Message() << x_rows << " rows of " << cols << ", " << count << " parts");
        const auto x = floats(std::int64_t{x_rows} * cols, 1);
        std::vector<float> scales(static_cast<std::size_t>(x_rows));
        for (std::size_t r = 0; r < scales.size(); ++r) scales[r] = r % 3 == 1 ? 0.0f : 0.5f + static_cast<float>(r);
        std::vector<Half> halves(static_cast<std::size_t>(count));
        std::vector<std::vector<float>> y;
        std::vector<std::unique_ptr<Array<std::byte>>> a_at;
        std::vector<std::unique_ptr<Array<float>>> b_at, y_at, alone_at;
        LowRankCall call;
        std::int32_t all = 0;
        for (int i = 0; i < count; ++i) {
          Half& half = halves[static_cast<std::size_t>(i)];
          half.rank = ranks[i];
          half.rows = outs[i];
          half.stride = half.rows + 3 * i;
          half.dtype = dtypes[i];
          half.factor = 2.0f / static_cast<float>(half.rank);
          half.a = floats(std::int64_t{half.rank} * cols, 1 / std::sqrt(static_cast<float>(cols)));
          half.b = floats(half.rank * half.stride, 0.3f);
          half.encoded = encoded(half.a, cols, half.dtype);
          y.push_back(floats(std::int64_t{x_rows} * half.stride, 1));
          a_at.push_back(std::make_unique<Array<std::byte>>(half.encoded));
          b_at.push_back(std::make_unique<Array<float>>(half.b));
          y_at.push_back(std::make_unique<Array<float>>(y.back()));
          alone_at.push_back(std::make_unique<Array<float>>(y.back()));
          call.parts[i] = {a_at.back()->get(), half.dtype,  b_at.back()->get(), half.stride, half.rank,
                           half.rows,          half.factor, y_at.back()->get(), half.stride};
          all += half.rank;
        }
        const Array<float> x_at(x), scales_at(scales), low(static_cast<std::size_t>(x_rows) * all);
        call.count = count;
        call.x = x_at.get();
        call.x_rows = x_rows;
        call.cols = cols;
        call.scales = scales_at.get();
        call.low = low.get();
        ok(add_low_rank(call, nullptr));
        // What is added, by itself.
        LowRankCall apart = call;
        apart.apart = true;
        std::vector<std::unique_ptr<Array<float>>> added;
        for (int i = 0; i < count; ++i) {
          const std::int32_t rows = call.parts[i].rows;
          added.push_back(std::make_unique<Array<float>>(static_cast<std::size_t>(x_rows) * rows));
          apart.parts[i].y = added.back()->get();
          apart.parts[i].y_stride = rows;
        }
        ok(add_low_rank(apart, nullptr));
        // Each row alone.
        for (std::int32_t r = 0; r < x_rows; ++r) {
          LowRankCall one = call;
          one.x += std::int64_t{r} * cols;
          one.x_rows = 1;
          one.scales += r;
          for (int i = 0; i < count; ++i)
            one.parts[i].y = alone_at[static_cast<std::size_t>(i)]->get() + r * one.parts[i].y_stride;
          ok(add_low_rank(one, nullptr));
        }
        for (int i = 0; i < count; ++i) {
          const Half& half = halves[static_cast<std::size_t>(i)];
          const std::vector<float>& before = y[static_cast<std::size_t>(i)];
          const auto got = y_at[static_cast<std::size_t>(i)]->host();
          EXPECT_TRUE(test::same_bits(got, alone_at[static_cast<std::size_t>(i)]->host()));
          const auto parts = added[static_cast<std::size_t>(i)]->host();
          std::vector<float> sums = before;
          for (std::int64_t r = 0; r < x_rows; ++r)
            for (std::int64_t n = 0; n < half.rows; ++n)
              sums[static_cast<std::size_t>(r * half.stride + n)] += parts[static_cast<std::size_t>(r * half.rows + n)];
          EXPECT_TRUE(test::same_bits(got, sums)) << "apart, part " << i;
          double worst = 0;
          for (std::int32_t r = 0; r < x_rows; ++r) {
            const float scale = scales[static_cast<std::size_t>(r)];
            std::vector<double> small(static_cast<std::size_t>(half.rank));
            for (std::int64_t j = 0; j < half.rank; ++j)
              for (std::int64_t k = 0; k < cols; ++k)
                small[static_cast<std::size_t>(j)] +=
                    static_cast<double>(half.a[static_cast<std::size_t>(j * cols + k)]) *
                    x[static_cast<std::size_t>(r * cols + k)];
            for (std::int64_t n = 0; n < half.stride; ++n) {
              const auto at = static_cast<std::size_t>(r * half.stride + n);
              if (scale == 0 || n >= half.rows) {
                ASSERT_EQ(got[at], before[at]);
                continue;
              }
              double sum = 0;
              for (std::int64_t j = 0; j < half.rank; ++j)
                sum += small[static_cast<std::size_t>(j)] * half.b[static_cast<std::size_t>(j * half.stride + n)];
              const double want = before[at] + sum * half.factor * scale;
              worst = std::max(worst, std::abs(got[at] - want) / std::max(1.0, std::abs(want)));
            }
          }
          EXPECT_LE(worst, 2e-5) << "part " << i;
        }
      }
    }
  }
}

TEST_F(CudaLowRank, RowsOfPromptsAreSummedByTensorCores) {
  constexpr std::int32_t kRank = 16;
  for (const std::int32_t cols : {32, 104, 4096}) {
    for (const std::int32_t x_rows : {1, 5, 37, 130}) {
      for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
        SCOPED_TRACE(testing::Message() << x_rows << " rows of " << cols << ", " << info(dtype).name);
        auto x = floats(std::int64_t{x_rows} * cols, 1);
        std::vector<Bf16> bits(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          bits[i] = f32_to_bf16(x[i]);
          x[i] = bf16_to_f32(bits[i]);
        }
        std::vector<float> scales(static_cast<std::size_t>(x_rows));
        for (std::size_t r = 0; r < scales.size(); ++r)
          scales[r] = r % 3 == 1 ? 0.0f : 0.5f + static_cast<float>(r % 7);
        for (const std::int32_t outs : {512, 130, 77}) {
          LowRankCall call;
          std::vector<std::vector<float>> a, b, y;
          std::vector<std::unique_ptr<Array<std::byte>>> a_at;
          std::vector<std::unique_ptr<Array<float>>> b_at, y_at, alone_at;
          for (int i = 0; i < 2; ++i) {
            a.push_back(floats(std::int64_t{kRank} * cols, 1 / std::sqrt(static_cast<float>(cols))));
            b.push_back(floats(std::int64_t{kRank} * outs, 0.3f));
            y.push_back(floats(std::int64_t{x_rows} * outs, 1));
            a_at.push_back(std::make_unique<Array<std::byte>>(encoded(a[i], cols, dtype)));
            b_at.push_back(std::make_unique<Array<float>>(b[i]));
            y_at.push_back(std::make_unique<Array<float>>(y[i]));
            alone_at.push_back(std::make_unique<Array<float>>(y[i]));
            call.parts[i] = {a_at[i]->get(), dtype, b_at[i]->get(), outs, kRank, outs, 0.125f, y_at[i]->get(), outs};
          }
          const Array<Bf16> x_at(bits), gated_at(static_cast<std::size_t>(x_rows) * outs);
          const Array<float> scales_at(scales), low(static_cast<std::size_t>(x_rows) * 2 * kRank);
          call.count = 2;
          call.x_bf16 = x_at.get();
          call.x_rows = x_rows;
          call.cols = cols;
          call.scales = scales_at.get();
          call.low = low.get();
          call.activation = x_rows % 2 == 0 ? Activation::limited : Activation::silu;
          call.limit = 0.5f;
          const bool gates = outs % 2 == 0;
          if (gates) {
            LowRankCall both = call;
            both.gated = gated_at.get();
            ok(add_low_rank(both, nullptr));
          }
          for (std::int32_t r = 0; r < x_rows; ++r) {
            LowRankCall one = call;
            one.x_bf16 += std::int64_t{r} * cols;
            one.x_rows = 1;
            one.scales += r;
            for (int i = 0; i < 2; ++i) one.parts[i].y = alone_at[i]->get() + std::int64_t{r} * outs;
            ok(add_low_rank(one, nullptr));
          }
          ok(add_low_rank(call, nullptr));
          std::vector<float> got[2];
          for (int i = 0; i < 2; ++i) {
            got[i] = y_at[i]->host();
            EXPECT_TRUE(test::same_bits(got[i], alone_at[i]->host())) << "part " << i;
            double worst = 0;
            for (std::int32_t r = 0; r < x_rows; ++r) {
              std::vector<double> small(kRank);
              for (std::int64_t j = 0; j < kRank; ++j)
                for (std::int64_t k = 0; k < cols; ++k)
                  small[static_cast<std::size_t>(j)] +=
                      static_cast<double>(a[i][static_cast<std::size_t>(j * cols + k)]) *
                      x[static_cast<std::size_t>(r * cols + k)];
              for (std::int64_t n = 0; n < outs; ++n) {
                const auto at = static_cast<std::size_t>(r * outs + n);
                double sum = 0;
                for (std::int64_t j = 0; j < kRank; ++j)
                  sum += small[static_cast<std::size_t>(j)] * b[i][static_cast<std::size_t>(j * outs + n)];
                const double want = y[i][at] + sum * 0.125 * scales[static_cast<std::size_t>(r)];
                worst = std::max(worst, std::abs(got[i][at] - want) / std::max(1.0, std::abs(want)));
              }
            }
            EXPECT_LE(worst, 3e-3) << "part " << i;
          }
          if (!gates) continue;
          // The gate and the up with what was added to them above, one after the other.
          const Array<float> gate(got[0]);
          const Array<float> up(got[1]);
          ok(gate_mul(call.activation, call.limit, gate.get(), up.get(), std::int64_t{x_rows} * outs, nullptr));
          const auto want = gate.host();
          const auto found = gated_at.host();
          for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(found[i], f32_to_bf16(want[i])) << i;
        }
      }
    }
  }
}

TEST_F(CudaLowRank, AProductAddsWhatTheLaunchBeforeItMakes) {
  constexpr std::int32_t kCols = 1024, kRows = 2048, kRank = 8;
  constexpr int kTimes = 60;
  auto weights = floats(std::int64_t{kRows} * kCols, 0.03f);
  const Array<std::byte> weight(encoded(weights, kCols, DType::q8_0));
  const test::Entry address(weight.get());
  const Array<float> a(floats(std::int64_t{kRank} * kCols, 0.03f)), b(floats(std::int64_t{kRank} * kRows, 0.3f));
  const Array<float> x(floats(std::int64_t{kTimes} * kCols, 1)), sums(floats(kCols, 1)), one(std::vector<float>{1.0f});
  const Array<float> low(kRank), addend(kRows);
  const Array<std::byte> rounded(q8_bytes(1, kCols));
  const Array<std::int32_t> ready(std::vector<std::int32_t>(2 * kTimes, 0));
  std::vector<float> results[2];
  for (const int overlaps : {0, 1}) {
    const Array<float> y(std::vector<float>(static_cast<std::size_t>(kTimes) * kRows, 0.5f));
    const Array<float> changing(x.host());
    for (int i = 0; i < kTimes; ++i) {
      float* const row = changing.get() + std::int64_t{i} * kCols;
      ok(add(row, sums.get(), kCols, nullptr));  // so that x comes late
      const Q8 q8 = q8_at(rounded.get(), 1, kCols);
      ok(quantize_q8(row, kCols, 1, kCols, q8, nullptr));
      LowRankCall call;
      call.count = 1;
      call.apart = true;
      call.parts[0] = {reinterpret_cast<const std::byte*>(a.get()),
                       DType::f32,
                       b.get(),
                       kRows,
                       kRank,
                       kRows,
                       1,
                       addend.get(),
                       kRows};
      call.x = row;
      call.x_rows = 1;
      call.cols = kCols;
      call.scales = one.get();
      call.low = low.get();
      call.ready = ready.get() + overlaps * kTimes + i;
      ok(add_low_rank(call, nullptr));
      MatmulCall product;
      product.count = 1;
      product.effect = Effect::add;
      product.cols = kCols;
      product.x_rows = 1;
      product.x_q8 = q8;
      product.products[0] = {
          {address.get(), DType::q8_0, kRows}, nullptr, y.get() + std::int64_t{i} * kRows, kRows, addend.get()};
      if (overlaps != 0) product.ready = call.ready;
      ok(matvec(product, nullptr));
      if (overlaps == 0) ok(cudaDeviceSynchronize());
    }
    results[overlaps] = y.host();
  }
  EXPECT_TRUE(test::same_bits(results[0], results[1]));
}

TEST_F(CudaLowRank, RefusesWhatItCannotRead) {
  const Array<float> memory(64);
  LowRankCall call;
  call.count = 1;
  call.x_rows = 1;
  call.cols = 32;
  call.x = call.scales = memory.get();
  call.low = memory.get();
  call.parts[0] = {memory.at_bytes(), DType::q8_0, memory.get(), 1, 1, 1, 1, memory.get(), 1};
  EXPECT_NE(add_low_rank(call, nullptr), cudaSuccess);
  call.parts[0].a_dtype = DType::f32;
  call.parts[0].rank = 0;
  EXPECT_NE(add_low_rank(call, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace millrace::kernels::cuda

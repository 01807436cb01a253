// Products with weights: every instruction set gives the bits of the plain one for every dtype, shape and number of
// rows; the plain one stays within the bound that int8 activations imply of the float reference.
#include "kernels/cpu/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/products.h"
#include "kernels/ref/ref.h"
#include "tensor/codec.h"

namespace millrace::kernels {
namespace {

using namespace test;

struct Kernels {
  Isa isa;
  void (*quantize_q8)(const float*, std::int64_t, std::int64_t, std::int64_t, Q8Rows);
  void (*matmul)(const MatmulArgs&);
  std::int64_t (*workspace_bytes)(std::int64_t);
};

Kernels kernels_for(Isa isa) {
  if (isa == Isa::avx512) return {isa, avx512::quantize_q8, avx512::matmul, avx512::matmul_workspace_bytes};
  if (isa == Isa::avx_vnni) return {isa, avx2::quantize_q8, avx_vnni::matmul, avx_vnni::matmul_workspace_bytes};
  if (isa == Isa::avx2) return {isa, avx2::quantize_q8, avx2::matmul, avx2::matmul_workspace_bytes};
  return {isa, plain::quantize_q8, plain::matmul, plain::matmul_workspace_bytes};
}

std::vector<float> run(const Kernels& kernels, const MatmulArgs& args) {
  return product_of(kernels.matmul, kernels.workspace_bytes, args);
}

class MatmulTest : public testing::TestWithParam<DType> {
 protected:
  std::int64_t block() const {
    const std::int64_t elements = info(GetParam()).block_elements;
    return uses_q8(GetParam()) ? elements : 1;
  }
  Rng rng_{static_cast<unsigned>(GetParam()) + 7};
};

TEST_P(MatmulTest, EveryIsaGivesThePlainBitsOnRandomShapes) {
  for (int round = 0; round < 24; ++round) {
    const std::int64_t n = 1 + static_cast<std::int64_t>(rng_() % 45),
                       x_rows = 1 + static_cast<std::int64_t>(rng_() % 40);
    std::int64_t k =
        block() *
        (1 + static_cast<std::int64_t>(rng_() % static_cast<unsigned>(2048 / block() < 80 ? 2048 / block() : 80)));
    if (block() == 1) k = 1 + static_cast<std::int64_t>(rng_() % 600);
    const Problem problem(GetParam(), n, k, x_rows, round % 3 == 0, round % 4 == 3 ? Fill::extreme : Fill::random,
                          rng_);
    const std::vector<float> expected = run(kernels_for(Isa::plain), problem.args());
    for (Isa isa : vector_isas()) expect_same_bits(expected, run(kernels_for(isa), problem.args()), problem, isa);
  }
}

TEST_P(MatmulTest, EveryIsaGivesThePlainBitsOnManyRowsAndLongColumns) {
  const std::int64_t k = 5632 / block() * block();
  for (const auto& [n, cols, x_rows] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{67, 256, 523}, {19, k, 131}, {16, k, 3}}) {
    const Problem problem(GetParam(), n, cols, x_rows, false, Fill::random, rng_);
    const std::vector<float> expected = run(kernels_for(Isa::plain), problem.args());
    for (Isa isa : vector_isas()) expect_same_bits(expected, run(kernels_for(isa), problem.args()), problem, isa);
  }
}

/// Tasks of products that share a thread's workspace, as executors run them: whatever was arranged there before, a
/// named input gives the bits of a nameless one.
TEST_P(MatmulTest, NamedInputsGiveTheSameBitsInAWorkspaceThatIsUsedAgain) {
  for (Isa isa : vector_isas()) {
    const std::size_t bytes = static_cast<std::size_t>(kernels_for(isa).workspace_bytes(1024) + 63) / 64 * 64;
    Fenced workspace(bytes);
    std::memset(workspace.data(), 0, bytes);
    // Two inputs by turns in products of this dtype and of others, of few rows and of many, cut into tasks.
    std::deque<Problem> problems;  // they do not move
    for (const DType dtype : {GetParam(), DType::q4_k, DType::f16, DType::q6_k, DType::q3_k}) {
      for (const std::int64_t x_rows : {1, 2, 3, 9})
        problems.emplace_back(dtype, 12, x_rows == 2 ? 512 : 1024, x_rows, false, Fill::random, rng_);
    }
    for (int call = 0; call < 120; ++call) {
      const std::size_t which = rng_() % problems.size();
      const Problem& problem = problems[which];
      const std::vector<float> expected = run(kernels_for(isa), problem.args());
      std::vector<float> y(expected.size());
      for (std::int64_t begin = 0; begin < problem.weight_rows; begin += 4) {
        MatmulArgs args = problem.args();
        args.weight += begin * row_bytes(args.dtype, args.cols);
        args.weight_rows = 4;
        args.x_name = which + 1;
        args.y = y.data() + begin;
        args.y_stride = problem.weight_rows;
        args.workspace = workspace.data();
        kernels_for(isa).matmul(args);
      }
      expect_same_bits(expected, y, problem, isa);
    }
  }
}

TEST_P(MatmulTest, ARowIsTheSameAloneAndAmongMany) {
  const Problem problem(GetParam(), 33, 512, 40, true, Fill::random, rng_);
  for (Isa isa : vector_isas()) {
    const std::vector<float> all = run(kernels_for(isa), problem.args());
    for (std::int64_t r = 0; r < problem.x_rows; ++r) {
      MatmulArgs one = problem.args();
      one.x_rows = 1;
      one.x_index += r;
      const std::vector<float> alone = run(kernels_for(isa), one);
      ASSERT_EQ(std::memcmp(alone.data(), all.data() + r * problem.weight_rows, alone.size() * 4), 0) << "x row " << r;
    }
  }
}

/// Kernels that read past the end of a row read its neighbour, whose blocks may hold anything.
TEST_P(MatmulTest, ARowIsTheSameBesideOneThatIsNoNumber) {
  for (const std::int64_t x_rows : {1, 3, 9}) {
    const Problem problem(GetParam(), 21, 11 * info(GetParam()).block_elements, x_rows, false, Fill::random, rng_);
    const auto stride = static_cast<std::size_t>(row_bytes(GetParam(), problem.cols));
    for (Isa isa : vector_isas()) {
      const std::vector<float> expected = run(kernels_for(isa), problem.args());
      for (const std::size_t bad : {0U, 7U, 16U, 20U}) {
        const std::vector<std::byte> kept(problem.weight.data() + bad * stride,
                                          problem.weight.data() + (bad + 1) * stride);
        std::memset(problem.weight.data() + bad * stride, 0xff, stride);
        std::vector<float> y = run(kernels_for(isa), problem.args());
        std::memcpy(problem.weight.data() + bad * stride, kept.data(), stride);
        for (std::size_t r = 0; r < static_cast<std::size_t>(x_rows); ++r) y[r * 21 + bad] = expected[r * 21 + bad];
        expect_same_bits(expected, y, problem, isa);
      }
    }
  }
}

TEST_P(MatmulTest, AnySplitOfTheWeightRowsGivesTheSameBits) {
  const Problem problem(GetParam(), 50, 512, 9, false, Fill::random, rng_);
  const std::int64_t stride = row_bytes(GetParam(), problem.cols);
  for (Isa isa : vector_isas()) {
    const std::vector<float> all = run(kernels_for(isa), problem.args());
    for (std::int64_t from = 0, count = 1; from < problem.weight_rows; from += count, count += 4) {
      MatmulArgs part = problem.args();
      part.weight += from * stride;
      part.weight_rows = std::min(count, problem.weight_rows - from);
      const std::vector<float> y = run(kernels_for(isa), part);
      for (std::int64_t r = 0; r < problem.x_rows; ++r) {
        ASSERT_EQ(std::memcmp(y.data() + r * part.weight_rows, all.data() + r * problem.weight_rows + from,
                              static_cast<std::size_t>(part.weight_rows) * 4),
                  0);
      }
    }
  }
}

// The plain product differs from the exact one by at most half a step of each activation times its weight, and by float
// rounding of a sum of cols terms.
TEST_P(MatmulTest, PlainAgreesWithTheFloatReference) {
  for (const std::int64_t cols : {std::int64_t{256}, std::int64_t{2048}}) {
    const Problem problem(GetParam(), 21, cols, 5, false, Fill::random, rng_);
    std::vector<float> expected(static_cast<std::size_t>(problem.x_rows * problem.weight_rows));
    ref::matmul(GetParam(), problem.weight.data(), problem.weight_rows, cols, problem.x.data(), problem.x_rows,
                expected.data());
    const std::vector<float> y = run(kernels_for(Isa::plain), problem.args());
    std::vector<float> w(static_cast<std::size_t>(cols));
    for (std::int64_t n = 0; n < problem.weight_rows; ++n) {
      decode_row(GetParam(), problem.weight.data() + n * row_bytes(GetParam(), cols), cols, w.data());
      for (std::int64_t r = 0; r < problem.x_rows; ++r) {
        double bound = 0;
        for (std::int64_t k = 0; k < cols; ++k) {
          const double weight = std::abs(w[static_cast<std::size_t>(k)]);
          const double x = std::abs(problem.x[static_cast<std::size_t>(r * cols + k)]);
          const double half_step = uses_q8(GetParam()) ? 0.5 * problem.q8.d[(r * cols + k) / 32] : 0;
          bound += weight * (half_step * 1.0001 + x * 1e-6);
        }
        const std::size_t at = static_cast<std::size_t>(r * problem.weight_rows + n);
        ASSERT_NEAR(expected[at], y[at], bound) << info(GetParam()).name;
      }
    }
  }
}

// Errors average out: over many outputs the relative error is far below the worst case, and a wrong scale or a missing
// block would show here.
TEST_P(MatmulTest, PlainIsCloseToTheFloatReferenceOnTheWhole) {
  const Problem problem(GetParam(), 64, 1024, 16, false, Fill::random, rng_);
  std::vector<float> expected(static_cast<std::size_t>(problem.x_rows * problem.weight_rows));
  ref::matmul(GetParam(), problem.weight.data(), problem.weight_rows, problem.cols, problem.x.data(), problem.x_rows,
              expected.data());
  const std::vector<float> y = run(kernels_for(Isa::plain), problem.args());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    error += std::pow(static_cast<double>(y[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  EXPECT_LT(std::sqrt(error / norm), uses_q8(GetParam()) ? 0.01 : 1e-6);
}

std::string dtype_name(const testing::TestParamInfo<DType>& param) { return std::string(info(param.param).name); }
INSTANTIATE_TEST_SUITE_P(AllDtypes, MatmulTest, testing::ValuesIn(computable_dtypes()), dtype_name);

TEST(MatmulWorkspaceTest, StaysSmall) {
  for (Isa isa : vector_isas()) {
    EXPECT_LE(kernels_for(isa).workspace_bytes(8192), 576 << 10);
    EXPECT_LE(kernels_for(isa).workspace_bytes(256), 96 << 10);
  }
}

class QuantizeQ8Test : public testing::Test {
 protected:
  static constexpr std::int64_t kRows = 5, kCols = 352, kStride = 360;
  std::vector<std::byte> memory_ = std::vector<std::byte>(static_cast<std::size_t>(q8_bytes(kRows, kCols)));

  // The bytes of q, d and sum16, one after the other.
  std::vector<std::byte> bits(Isa isa, const std::vector<float>& x) {
    const Q8Rows rows = q8_rows_at(memory_.data(), kRows, kCols);
    kernels_for(isa).quantize_q8(x.data(), kStride, kRows, kCols, rows);
    std::vector<std::byte> all(kRows * (kCols + kCols / 32 * 4 + kCols / 16 * 4));
    std::memcpy(all.data(), rows.q, kRows * kCols);
    std::memcpy(all.data() + kRows * kCols, rows.d, kRows * kCols / 32 * 4);
    std::memcpy(all.data() + kRows * kCols + kRows * kCols / 32 * 4, rows.sum16, kRows * kCols / 16 * 4);
    return all;
  }

  static std::vector<float> random(Rng& rng, float scale) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> x(kRows * kStride);
    for (float& value : x) value = normal(rng);
    return x;
  }
};

TEST_F(QuantizeQ8Test, EveryIsaGivesThePlainBits) {
  Rng rng(3);
  for (const float scale : {1.0F, 1e-30F, 1e-37F, 1e-40F, 1e30F, 0.0F}) {
    std::vector<float> x = random(rng, scale);
    x[40] = 2.5F, x[41] = -2.5F, x[42] = 127.0F;  // ties, where the scale is 1
    for (Isa isa : vector_isas()) EXPECT_EQ(bits(Isa::plain, x), bits(isa, x)) << scale;
  }
}

TEST_F(QuantizeQ8Test, EveryValueIsWithinHalfAStepAndSumsAreExact) {
  Rng rng(4);
  const std::vector<float> x = random(rng, 3);
  bits(Isa::plain, x);
  const Q8Rows rows = q8_rows_at(memory_.data(), kRows, kCols);
  for (std::int64_t r = 0; r < kRows; ++r) {
    std::int32_t sum = 0;
    for (std::int64_t k = 0; k < kCols; ++k) {
      const float d = rows.d[r * (kCols / 32) + k / 32];
      const std::int8_t q = rows.q[r * kCols + k];
      ASSERT_LE(std::abs(d * q - x[static_cast<std::size_t>(r * kStride + k)]), d * 0.50001F);
      sum += q;
      if (k % 16 == 15) {
        ASSERT_EQ(rows.sum16[r * (kCols / 16) + k / 16], sum);
        sum = 0;
      }
    }
  }
}

TEST_F(QuantizeQ8Test, WhatIsNotFiniteShowsInItsBlockAlone) {
  Rng rng(5);
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = random(rng, 1);
    x[kStride + 64 + 9] = bad;
    const std::vector<std::byte> expected = bits(Isa::plain, x);
    const Q8Rows rows = q8_rows_at(memory_.data(), kRows, kCols);
    for (std::int64_t b = 0; b < kRows * kCols / 32; ++b) {
      EXPECT_EQ(std::isnan(rows.d[b]), b == kCols / 32 + 2) << b;
    }
    for (Isa isa : vector_isas()) EXPECT_EQ(expected, bits(isa, x));
  }
}

TEST(Q8RowsTest, LiesInsideItsMemoryAligned) {
  std::vector<std::byte> memory(static_cast<std::size_t>(q8_bytes(3, 96)) + 1);
  const Q8Rows rows = q8_rows_at(memory.data() + 1, 3, 96);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(rows.q) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(rows.d) % 64, 0U);
  EXPECT_LE(static_cast<void*>(rows.sum16 + 3 * 96 / 16), static_cast<void*>(memory.data() + memory.size()));
}

}  // namespace
}  // namespace millrace::kernels

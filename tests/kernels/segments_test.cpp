// Products whose sums run as the GPU's do: every instruction set gives the bits of the contract as it is written down
// for the GPU's own tests (tests/cuda/contract.h), for every dtype, shape and number of rows.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/contract.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/segments_blocks.h"
#include "kernels/products.h"

namespace millrace::kernels {
namespace {

using namespace test;

struct Segments {
  Isa isa;
  void (*multiply)(const MatmulArgs&);
  std::int64_t (*workspace_bytes)(std::int64_t);
};

Segments segments(Isa isa) {
  if (isa == Isa::avx512) return {isa, avx512::matmul_segments, avx512::matmul_segments_workspace_bytes};
  if (isa == Isa::avx_vnni) return {isa, avx_vnni::matmul_segments, avx_vnni::matmul_segments_workspace_bytes};
  if (isa == Isa::avx2) return {isa, avx2::matmul_segments, avx2::matmul_segments_workspace_bytes};
  return {isa, plain::matmul_segments, plain::matmul_segments_workspace_bytes};
}

std::vector<Isa> isas() {
  std::vector<Isa> all = vector_isas();
  all.insert(all.begin(), Isa::plain);
  return all;
}

std::vector<float> run(Isa isa, const MatmulArgs& args) {
  return product_of(segments(isa).multiply, segments(isa).workspace_bytes, args);
}

std::vector<float> contract(const Problem& problem) {
  std::vector<float> y;
  for (std::int64_t r = 0; r < problem.x_rows; ++r) {
    const std::int64_t row = problem.index.empty() ? r : problem.index[static_cast<std::size_t>(r)];
    for (std::int64_t n = 0; n < problem.weight_rows; ++n) {
      y.push_back(millrace::test::contract_dot(
          problem.dtype, problem.weight.data() + n * row_bytes(problem.dtype, problem.cols), problem.cols,
          problem.x.data() + row * problem.cols, problem.q8.q + row * problem.cols,
          problem.q8.d + row * problem.cols / 32));
    }
  }
  return y;
}

class SegmentsTest : public testing::TestWithParam<DType> {
 protected:
  /// Columns that a row may have: a multiple of this.
  std::int64_t step() const { return uses_q8(GetParam()) ? info(GetParam()).block_elements : 1; }
  std::int64_t below(std::int64_t end) { return static_cast<std::int64_t>(rng_() % static_cast<unsigned>(end)); }
  void expect_the_contract(const Problem& problem) {
    const std::vector<float> wanted = contract(problem);
    for (const Isa isa : isas()) {
      expect_same_bits(wanted, run(isa, problem.args()), problem, isa);
      if (HasFatalFailure()) return;
    }
  }
  Rng rng_{static_cast<unsigned>(GetParam()) + 19};
};

TEST_P(SegmentsTest, RandomShapesHaveTheContractsBits) {
  for (int round = 0; round < 60; ++round) {
    const std::int64_t n = 1 + below(45), x_rows = 1 + below(round % 5 == 0 ? 40 : 9);
    const std::int64_t cols = step() * (1 + below(std::max<std::int64_t>(1, (round % 4 == 0 ? 6000 : 1400) / step())));
    const Problem problem(GetParam(), n, cols, x_rows, round % 3 == 0, round % 4 == 3 ? Fill::extreme : Fill::random,
                          rng_);
    expect_the_contract(problem);
    if (HasFatalFailure()) return;
  }
}

// One segment and as many as there are lanes, and what lies beside; the columns of models.
TEST_P(SegmentsTest, EveryNumberOfSegmentsHasTheContractsBits) {
  for (std::int64_t segments = 1; segments <= 35; ++segments) {
    for (const std::int64_t cols : {segments * 256, segments * 256 - step()}) {
      const Problem problem(GetParam(), 1 + below(19), cols == 0 ? step() : cols, 1 + below(5), false, Fill::random,
                            rng_);
      expect_the_contract(problem);
      if (HasFatalFailure()) return;
    }
  }
  for (const std::int64_t cols : {5120, 11008, 14336, 28672}) {
    expect_the_contract(Problem(GetParam(), 7, cols, 3, false, Fill::random, rng_));
    if (HasFatalFailure()) return;
  }
}

TEST_P(SegmentsTest, ARowIsTheSameAloneAndAmongMany) {
  const Problem problem(GetParam(), 33, 1280, 21, true, Fill::random, rng_);
  for (const Isa isa : isas()) {
    const std::vector<float> all = run(isa, problem.args());
    for (std::int64_t r = 0; r < problem.x_rows; ++r) {
      MatmulArgs one = problem.args();
      one.x_rows = 1;
      one.x_index += r;
      const std::vector<float> alone = run(isa, one);
      ASSERT_EQ(std::memcmp(alone.data(), all.data() + r * problem.weight_rows, alone.size() * 4), 0) << "x row " << r;
    }
  }
}

TEST_P(SegmentsTest, AnyPartOfTheWeightRowsHasTheSameBits) {
  const Problem problem(GetParam(), 50, 1536, 8, false, Fill::random, rng_);
  const std::int64_t stride = row_bytes(GetParam(), problem.cols);
  for (const Isa isa : isas()) {
    const std::vector<float> all = run(isa, problem.args());
    for (std::int64_t from = 0, count = 1; from < problem.weight_rows; from += count, count += 4) {
      MatmulArgs part = problem.args();
      part.weight += from * stride;
      part.weight_rows = std::min(count, problem.weight_rows - from);
      const std::vector<float> y = run(isa, part);
      for (std::int64_t r = 0; r < problem.x_rows; ++r) {
        ASSERT_EQ(std::memcmp(y.data() + r * part.weight_rows, all.data() + r * problem.weight_rows + from,
                              static_cast<std::size_t>(part.weight_rows) * 4),
                  0);
      }
    }
  }
}

/// Whatever was arranged in a thread's workspace before, a named input gives the bits of a nameless one.
TEST_P(SegmentsTest, NamedInputsHaveTheSameBitsInAWorkspaceThatIsUsedAgain) {
  for (const Isa isa : vector_isas()) {
    const std::size_t bytes = static_cast<std::size_t>(segments(isa).workspace_bytes(1536) + 63) / 64 * 64;
    Fenced workspace(bytes);
    std::memset(workspace.data(), 0, bytes);
    std::deque<Problem> problems;  // they do not move
    for (const DType dtype : {GetParam(), DType::q4_k, DType::f16, DType::q6_k, DType::q8_0, DType::q2_k}) {
      for (const std::int64_t x_rows : {1, 2, 3, 8, 9})
        problems.emplace_back(dtype, 12, x_rows % 2 == 0 ? 512 : 1536, x_rows, false, Fill::random, rng_);
    }
    for (int call = 0; call < 150; ++call) {
      const std::size_t which = rng_() % problems.size();
      const Problem& problem = problems[which];
      const std::vector<float> wanted = run(isa, problem.args());
      std::vector<float> y(wanted.size());
      for (std::int64_t begin = 0; begin < problem.weight_rows; begin += 4) {
        MatmulArgs args = problem.args();
        args.weight += begin * row_bytes(args.dtype, args.cols);
        args.weight_rows = 4;
        args.x_name = which + 1;
        args.y = y.data() + begin;
        args.y_stride = problem.weight_rows;
        args.workspace = workspace.data();
        segments(isa).multiply(args);
      }
      expect_same_bits(wanted, y, problem, isa);
      if (HasFatalFailure()) return;
    }
  }
}

/// That the contract's order is another than matmul's, and both are sums of the same terms.
TEST_P(SegmentsTest, IsNearMatmulAndNotTheSame) {
  const Problem problem(GetParam(), 64, 2048, 4, false, Fill::random, rng_);
  const std::vector<float> y = run(Isa::plain, problem.args());
  const std::vector<float> other = product_of(plain::matmul, plain::matmul_workspace_bytes, problem.args());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    error += std::pow(static_cast<double>(y[i]) - other[i], 2);
    norm += std::pow(static_cast<double>(other[i]), 2);
  }
  EXPECT_LT(std::sqrt(error / norm), 1e-6);
  EXPECT_GT(error, 0);
}

/// What is not a number in a row of x or of weights stays in its row and column.
TEST_P(SegmentsTest, WhatIsNotFiniteStaysWhereItIs) {
  Problem problem(GetParam(), 9, 768, 3, false, Fill::random, rng_);
  problem.x[768 + 5] = std::numeric_limits<float>::quiet_NaN();
  if (uses_q8(GetParam())) plain::quantize_q8(problem.x.data(), 768, 3, 768, problem.q8);
  for (const Isa isa : isas()) {
    const std::vector<float> y = run(isa, problem.args());
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 9 == 1) << device::isa_name(isa) << i;
  }
}

std::string dtype_name(const testing::TestParamInfo<DType>& param) { return std::string(info(param.param).name); }
INSTANTIATE_TEST_SUITE_P(AllDtypes, SegmentsTest, testing::ValuesIn(computable_dtypes()), dtype_name);

/// Products of one row come straight from the file's blocks on AVX2 wherever they do on AVX-512: without that, experts
/// of MXFP4 beside a GPU took 3.4 times as long.
TEST(SegmentsBlocksTest, Avx2HasAFormForEveryDtypeThatAvx512Has) {
  if (device::best_isa() < Isa::avx2) GTEST_SKIP() << "this processor has no AVX2";
  Rng rng{23};
  for (const DType dtype : computable_dtypes()) {
    const bool in_panels = !uses_q8(dtype) || dtype == DType::q1_0 || dtype == DType::q2_0 || dtype == DType::q2_k;
    if (in_panels) continue;
    for (const std::int64_t cols : {2560, 2560 + static_cast<int>(info(dtype).block_elements)}) {
      const Problem problem(dtype, 9, cols, 1, false, Fill::random, rng);
      const auto product = [](const MatmulArgs& args) { EXPECT_TRUE(avx2::segments_blocks(args)); };
      expect_same_bits(contract(problem), product_of(product, avx2::matmul_segments_workspace_bytes, problem.args()),
                       problem, Isa::avx2);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(SegmentsWorkspaceTest, StaysSmall) {
  for (const Isa isa : vector_isas()) {
    EXPECT_LE(segments(isa).workspace_bytes(8192), 320 << 10);
    EXPECT_LE(segments(isa).workspace_bytes(28672), 640 << 10);
  }
}

}  // namespace
}  // namespace millrace::kernels

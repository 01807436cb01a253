// Products with weights: every instruction set gives the bits of the plain one for every dtype, shape and number of
// rows; the plain one stays within the bound that int8 activations imply of the float reference.
#include "kernels/cpu/matmul.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/ref/ref.h"
#include "tensor/codec.h"

namespace millrace::kernels {
namespace {

using device::Isa;
using Rng = std::mt19937;

struct Kernels {
  Isa isa;
  void (*quantize_q8)(const float*, std::int64_t, std::int64_t, std::int64_t, Q8Rows);
  void (*matmul)(const MatmulArgs&);
  std::int64_t (*workspace_bytes)(std::int64_t);
};

Kernels kernels(Isa isa) {
  if (isa == Isa::avx512) return {isa, avx512::quantize_q8, avx512::matmul, avx512::matmul_workspace_bytes};
  if (isa == Isa::avx2) return {isa, avx2::quantize_q8, avx2::matmul, avx2::matmul_workspace_bytes};
  return {isa, plain::quantize_q8, plain::matmul, plain::matmul_workspace_bytes};
}

std::vector<Isa> vector_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::avx2, Isa::avx512}) {
    if (isa <= device::best_isa()) isas.push_back(isa);
  }
  return isas;
}

std::vector<DType> computable_dtypes() {
  std::vector<DType> dtypes;
  for (const DTypeInfo& entry : all_dtypes()) {
    if (entry.computable) dtypes.push_back(entry.dtype);
  }
  return dtypes;
}

/// Memory that ends where the process may no longer read or write.
class Fenced {
 public:
  explicit Fenced(std::size_t bytes) : bytes_(bytes) {
    const std::size_t pages = (bytes + kPage - 1) / kPage * kPage;
    map_bytes_ = pages + kPage;
    void* map = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(map, MAP_FAILED);
    map_ = static_cast<std::byte*>(map);
    EXPECT_EQ(mprotect(map_ + pages, kPage, PROT_NONE), 0);
    data_ = map_ + pages - bytes;
  }
  ~Fenced() { munmap(map_, map_bytes_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  static constexpr std::size_t kPage = 4096;
  std::size_t bytes_, map_bytes_ = 0;
  std::byte *map_ = nullptr, *data_ = nullptr;
};

void put_half(std::byte* at, float value) {
  const std::uint16_t bits = f32_to_f16(value);
  std::memcpy(at, &bits, sizeof bits);
}

/// Where a block's float16 fields lie (-1: none). MXFP4 has an exponent instead.
struct HalfFields {
  int d, second;
};
HalfFields half_fields(DType dtype) {
  switch (dtype) {
    case DType::q4_1:
    case DType::q5_1:
    case DType::q4_k:
    case DType::q5_k:
      return {0, 2};
    case DType::q2_k:
      return {80, 82};
    case DType::q3_k:
      return {108, -1};
    case DType::q6_k:
      return {208, -1};
    default:
      return {0, -1};
  }
}

enum class Fill { random, extreme };

/// Random blocks: every bit pattern of the quants and of the small scales, float16 scales of sane size. Extreme: bytes
/// of all ones, all zeros and lone sign bits, where saturating instructions would show.
void fill_weights(DType dtype, std::int64_t rows, std::int64_t cols, Fill fill, Rng& rng, std::byte* out) {
  std::normal_distribution<float> normal(0, 1);
  if (!uses_q8(dtype)) {
    std::vector<float> row(static_cast<std::size_t>(cols));
    for (std::int64_t n = 0; n < rows; ++n, out += row_bytes(dtype, cols)) {
      for (float& value : row) value = normal(rng);
      encode_row(dtype, row.data(), cols, out);
    }
    return;
  }
  constexpr unsigned char kExtremes[] = {0x00, 0xff, 0x80, 0x7f, 0x88, 0x77};
  const DTypeInfo& type = info(dtype);
  const HalfFields fields = half_fields(dtype);
  const std::int64_t blocks = rows * cols / type.block_elements;
  for (std::int64_t b = 0; b < blocks; ++b, out += type.block_bytes) {
    const unsigned char same = kExtremes[rng() % 6];
    for (std::int64_t i = 0; i < type.block_bytes; ++i) {
      out[i] = static_cast<std::byte>(fill == Fill::random ? rng() % 256 : same);
    }
    if (dtype == DType::mxfp4) {
      out[0] = static_cast<std::byte>(rng() % 20 == 0 ? rng() % 3 : 110 + rng() % 30);
      continue;
    }
    put_half(out + fields.d, normal(rng) * 0.1F);
    if (fields.second >= 0) put_half(out + fields.second, normal(rng) * 0.1F);
  }
}

struct Problem {
  DType dtype;
  std::int64_t weight_rows, cols, x_rows, x_source_rows;
  std::vector<std::int32_t> index;  // empty: none
  Fenced weight;
  std::vector<float> x;
  std::vector<std::byte> q8_memory;
  Q8Rows q8;

  Problem(DType type, std::int64_t n, std::int64_t k, std::int64_t rows, bool indexed, Fill fill, Rng& rng)
      : dtype(type),
        weight_rows(n),
        cols(k),
        x_rows(rows),
        x_source_rows(indexed ? rows + 3 : rows),
        weight(static_cast<std::size_t>(n * row_bytes(type, k))),
        x(static_cast<std::size_t>(x_source_rows * k)),
        q8_memory(static_cast<std::size_t>(q8_bytes(x_source_rows, k))) {
    fill_weights(type, n, k, fill, rng, weight.data());
    std::normal_distribution<float> normal(0, 1);
    for (float& value : x) value = fill == Fill::random ? normal(rng) : (rng() % 8 != 0 ? 3.0F : -3.0F);
    for (std::int64_t r = 0; indexed && r < rows; ++r) {
      index.push_back(static_cast<std::int32_t>(rng() % static_cast<unsigned>(x_source_rows)));
    }
    q8 = q8_rows_at(q8_memory.data(), x_source_rows, k);
    if (uses_q8(type)) plain::quantize_q8(x.data(), k, x_source_rows, k, q8);
  }

  MatmulArgs args() const {
    MatmulArgs args;
    args.dtype = dtype;
    args.weight = weight.data();
    args.weight_rows = weight_rows;
    args.cols = cols;
    args.x = x.data();
    args.x_stride = cols;
    args.x_q8 = q8;
    args.x_rows = x_rows;
    args.x_index = index.empty() ? nullptr : index.data();
    return args;
  }
};

/// y [x_rows, weight_rows], computed into a wider matrix whose gaps must stay as they were.
std::vector<float> run(const Kernels& kernels, MatmulArgs args) {
  const std::int64_t stride = args.weight_rows + 5;
  std::vector<float> y(static_cast<std::size_t>(args.x_rows * stride), 12345.0F);
  const std::size_t bytes = static_cast<std::size_t>(kernels.workspace_bytes(args.cols) + 63) / 64 * 64;
  Fenced workspace(bytes);  // ends on a page boundary, and so it is 64-byte aligned
  std::memset(workspace.data(), 0xa5, bytes);
  args.workspace = workspace.data();
  args.y = y.data();
  args.y_stride = stride;
  kernels.matmul(args);
  std::vector<float> dense;
  for (std::int64_t r = 0; r < args.x_rows; ++r) {
    const float* row = y.data() + r * stride;
    dense.insert(dense.end(), row, row + args.weight_rows);
    for (std::int64_t n = args.weight_rows; n < stride; ++n) EXPECT_EQ(row[n], 12345.0F) << "wrote past its columns";
  }
  return dense;
}

void expect_same_bits(const std::vector<float>& expected, const std::vector<float>& actual, const Problem& problem,
                      Isa isa) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    std::uint32_t want, got;
    std::memcpy(&want, &expected[i], sizeof want);
    std::memcpy(&got, &actual[i], sizeof got);
    ASSERT_EQ(want, got) << info(problem.dtype).name << " on " << device::isa_name(isa) << ": x row "
                         << i / static_cast<std::size_t>(problem.weight_rows) << ", weight row "
                         << i % static_cast<std::size_t>(problem.weight_rows) << " of " << problem.weight_rows << " x "
                         << problem.cols << ": " << expected[i] << " and " << actual[i];
  }
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
    const std::vector<float> expected = run(kernels(Isa::plain), problem.args());
    for (Isa isa : vector_isas()) expect_same_bits(expected, run(kernels(isa), problem.args()), problem, isa);
  }
}

TEST_P(MatmulTest, EveryIsaGivesThePlainBitsOnManyRowsAndLongColumns) {
  const std::int64_t k = 5632 / block() * block();
  for (const auto& [n, cols, x_rows] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{67, 256, 523}, {19, k, 131}, {16, k, 3}}) {
    const Problem problem(GetParam(), n, cols, x_rows, false, Fill::random, rng_);
    const std::vector<float> expected = run(kernels(Isa::plain), problem.args());
    for (Isa isa : vector_isas()) expect_same_bits(expected, run(kernels(isa), problem.args()), problem, isa);
  }
}

/// Tasks of products that share a thread's workspace, as executors run them: whatever was arranged there before, a
/// named input gives the bits of a nameless one.
TEST_P(MatmulTest, NamedInputsGiveTheSameBitsInAWorkspaceThatIsUsedAgain) {
  for (Isa isa : vector_isas()) {
    const std::size_t bytes = static_cast<std::size_t>(kernels(isa).workspace_bytes(1024) + 63) / 64 * 64;
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
      const std::vector<float> expected = run(kernels(isa), problem.args());
      std::vector<float> y(expected.size());
      for (std::int64_t begin = 0; begin < problem.weight_rows; begin += 4) {
        MatmulArgs args = problem.args();
        args.weight += begin * row_bytes(args.dtype, args.cols);
        args.weight_rows = 4;
        args.x_name = which + 1;
        args.y = y.data() + begin;
        args.y_stride = problem.weight_rows;
        args.workspace = workspace.data();
        kernels(isa).matmul(args);
      }
      expect_same_bits(expected, y, problem, isa);
    }
  }
}

TEST_P(MatmulTest, ARowIsTheSameAloneAndAmongMany) {
  const Problem problem(GetParam(), 33, 512, 40, true, Fill::random, rng_);
  for (Isa isa : vector_isas()) {
    const std::vector<float> all = run(kernels(isa), problem.args());
    for (std::int64_t r = 0; r < problem.x_rows; ++r) {
      MatmulArgs one = problem.args();
      one.x_rows = 1;
      one.x_index += r;
      const std::vector<float> alone = run(kernels(isa), one);
      ASSERT_EQ(std::memcmp(alone.data(), all.data() + r * problem.weight_rows, alone.size() * 4), 0) << "x row " << r;
    }
  }
}

TEST_P(MatmulTest, AnySplitOfTheWeightRowsGivesTheSameBits) {
  const Problem problem(GetParam(), 50, 512, 9, false, Fill::random, rng_);
  const std::int64_t stride = row_bytes(GetParam(), problem.cols);
  for (Isa isa : vector_isas()) {
    const std::vector<float> all = run(kernels(isa), problem.args());
    for (std::int64_t from = 0, count = 1; from < problem.weight_rows; from += count, count += 4) {
      MatmulArgs part = problem.args();
      part.weight += from * stride;
      part.weight_rows = std::min(count, problem.weight_rows - from);
      const std::vector<float> y = run(kernels(isa), part);
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
    const std::vector<float> y = run(kernels(Isa::plain), problem.args());
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
  const std::vector<float> y = run(kernels(Isa::plain), problem.args());
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
    EXPECT_LE(kernels(isa).workspace_bytes(8192), 576 << 10);
    EXPECT_LE(kernels(isa).workspace_bytes(256), 96 << 10);
  }
}

class QuantizeQ8Test : public testing::Test {
 protected:
  static constexpr std::int64_t kRows = 5, kCols = 352, kStride = 360;
  std::vector<std::byte> memory_ = std::vector<std::byte>(static_cast<std::size_t>(q8_bytes(kRows, kCols)));

  // The bytes of q, d and sum16, one after the other.
  std::vector<std::byte> bits(Isa isa, const std::vector<float>& x) {
    const Q8Rows rows = q8_rows_at(memory_.data(), kRows, kCols);
    kernels(isa).quantize_q8(x.data(), kStride, kRows, kCols, rows);
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

// matmul_prompt() against products in double of the same rounded numbers, over all dtypes and odd shapes, by bfloat16
// or by int8 as the device has it; and that its bits depend on nothing but a row and the weights.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/on_device.h"
#include "cuda/weights.h"
#include "kernels/cuda/launchers.h"
#include "kernels/kernels.h"
#include "tensor/codec.h"

namespace millrace::kernels::cuda {

extern int prompt_forced_width;

namespace {

using test::Array;
using test::Entry;
using test::ok;
using test::Random;

Bf16 bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<Bf16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
float rounded(float x) { return std::bit_cast<float>(std::uint32_t{bf16(x)} << 16); }
bool by_int8() { return prompt_products() == PromptProducts::int8; }

/// What int8 with one scale make of a segment.
void round_to_int8(std::span<float> segment) {
  float amax = 0;
  for (const float v : segment) amax = std::max(amax, std::abs(v));
  const float d = amax / 127, inverse = amax > 0 ? 127 / amax : 0;
  for (float& v : segment) v = d * std::nearbyint(v * inverse);
}

struct Weights {
  Weights(DType dtype, int rows, int cols, Random& random)
      : dtype(dtype),
        rows(rows),
        cols(cols),
        bytes(test::random_weights(dtype, rows, cols, random)),
        device(bytes),
        entry(device.at_bytes()),
        values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols)) {
    for (int n = 0; n < rows; ++n)
      decode_row(dtype, bytes.data() + n * row_bytes(dtype, cols), cols, values.data() + std::int64_t{n} * cols);
    if (by_int8()) return;
    for (float& v : values) v = rounded(v);
  }
  Matrix matrix() const { return {entry.get(), dtype, rows}; }

  DType dtype;
  int rows, cols;
  std::vector<std::byte> bytes;
  Array<std::byte> device;
  Entry entry;
  std::vector<float> values;
};

struct Inputs {
  Inputs(int rows, int cols, Random& random)
      : rows(rows), cols(cols), values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols)) {
    for (float& v : values) v = random.normal() * (random.below(40) == 0 ? 20.0F : 1.0F);
    std::vector<Bf16> bits;
    bits.reserve(values.size());
    for (float& v : values) {
      bits.push_back(bf16(v));
      v = rounded(v);
    }
    device = std::make_unique<Array<Bf16>>(bits);
    if (!by_int8()) return;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; c += kSegment)
        round_to_int8(
            {values.data() + std::int64_t{r} * cols + c, static_cast<std::size_t>(std::min(kSegment, cols - c))});
  }
  /// Rows [first, first + count), in the form that the device's products read.
  void into(MatmulCall& call, int first, int count) {
    const Bf16* from = device->get() + std::int64_t{first} * cols;
    call.x_rows = count;
    if (!by_int8()) {
      call.x_bf16 = from;
      return;
    }
    rounded_rows.push_back(std::make_unique<Array<std::byte>>(prompt_int8_bytes(count, cols)));
    call.x_rounded = prompt_int8_at(rounded_rows.back()->get(), count, cols);
    ok(round_prompt(from, count, cols, call.x_rounded, nullptr));
  }
  int rows, cols;
  std::vector<float> values;
  std::unique_ptr<Array<Bf16>> device;
  std::vector<std::unique_ptr<Array<std::byte>>> rounded_rows;
};

/// The exact sum of a product, and that of its terms' magnitudes.
struct Sum {
  double sum = 0, magnitude = 0;
};
Sum exact(const Weights& w, int n, const Inputs& x, int r) {
  Sum s;
  const float* a = w.values.data() + std::int64_t{n} * w.cols;
  const float* b = x.values.data() + std::int64_t{r} * x.cols;
  for (int k = 0; k < x.cols; ++k) {
    s.sum += double{a[k]} * double{b[k]};
    s.magnitude += std::abs(double{a[k]} * double{b[k]});
  }
  return s;
}
/// Sums in float, and now and then a weight whose float value (rounded in another order by the codec) falls to the
/// other side of a bfloat16; or mins and sums that are rounded to tf32.
constexpr double kTolerance = 3e-4, kToleranceOfMins = 1e-3;

MatmulCall call_of(const Weights& w, Inputs& x, float* y, std::int64_t y_stride) {
  MatmulCall call;
  call.products[0] = {w.matrix(), nullptr, y, y_stride};
  call.count = 1;
  call.cols = x.cols;
  x.into(call, 0, x.rows);
  return call;
}

class PromptMatmul : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!test::has_device()) GTEST_SKIP() << "no CUDA device";
    if (!has_prompt_product(prompt_products(), GetParam())) GTEST_SKIP() << "the device has none with such weights";
  }
  void TearDown() override { prompt_forced_width = 0; }

  int cols_near(int cols) const {
    if (info(GetParam()).block_elements == 64) return cols / 128 * 128 + 64;
    if (info(GetParam()).block_elements == 128) return cols / 256 * 256 + 128;
    return info(GetParam()).block_elements == 32 ? cols / 64 * 64 + 32 : std::max(cols / 256, 1) * 256;
  }
  std::string where(int x_rows, int rows, int cols) const {
    return std::string(info(GetParam()).name) + " x_rows " + std::to_string(x_rows) + " rows " + std::to_string(rows) +
           " cols " + std::to_string(cols) + " width " + std::to_string(prompt_forced_width);
  }
};

TEST_P(PromptMatmul, IsNearTheExactProductWhateverTheTile) {
  Random random(5 + static_cast<unsigned>(GetParam()));
  struct Size {
    int x_rows, rows, cols;
  };
  for (const Size size : {Size{1, 37, 1056}, Size{33, 128, 256}, Size{70, 130, 4160}, Size{257, 96, 800},
                          Size{300, 257, 544}, Size{64, 64, 32}}) {
    const int cols = cols_near(size.cols), stride = size.rows + 1 + size.rows % 2;
    const Weights w(GetParam(), size.rows, cols, random);
    Inputs x(size.x_rows, cols, random);
    std::vector<float> first;
    for (const int width : {256, 128, 64, 32}) {
      prompt_forced_width = width;
      Array<float> y(static_cast<std::size_t>(size.x_rows * stride));
      ok(matmul_prompt(call_of(w, x, y.get(), stride), nullptr));
      const std::vector<float> got = y.host();
      if (first.empty()) {
        first = got;
        int wrong = 0;
        for (int r = 0; r < size.x_rows; ++r) {
          for (int n = 0; n < size.rows; ++n) {
            const Sum want = exact(w, n, x, r);
            const double value = got[static_cast<std::size_t>(r * stride + n)];
            const double tolerance = by_int8() ? kToleranceOfMins : kTolerance;
            if (std::abs(value - want.sum) <= tolerance * want.magnitude) continue;
            if (++wrong <= 3)
              ADD_FAILURE() << where(size.x_rows, size.rows, cols) << " row " << r << ", " << n << ": " << value
                            << " for " << want.sum;
          }
        }
        EXPECT_EQ(wrong, 0) << where(size.x_rows, size.rows, cols);
      }
      EXPECT_TRUE(test::same_bits(got, first)) << where(size.x_rows, size.rows, cols);
    }
  }
}

TEST_P(PromptMatmul, ARowDoesNotDependOnThoseBesideIt) {
  Random random(17 + static_cast<unsigned>(GetParam()));
  const int cols = cols_near(1024), rows = 192;
  const Weights w(GetParam(), rows, cols, random);
  Inputs x(310, cols, random);
  Array<float> all(std::size_t{310} * rows);
  ok(matmul_prompt(call_of(w, x, all.get(), rows), nullptr));
  const std::vector<float> want = all.host();
  for (const int first : {0, 1, 200, 309}) {
    MatmulCall call = call_of(w, x, nullptr, rows);
    x.into(call, first, std::min(310 - first, 90));
    Array<float> y(static_cast<std::size_t>(call.x_rows * rows));
    call.products[0].y = y.get();
    ok(matmul_prompt(call, nullptr));
    const auto begin = want.begin() + std::int64_t{first} * rows;
    EXPECT_TRUE(test::same_bits(y.host(), std::vector<float>(begin, begin + std::int64_t{call.x_rows} * rows)))
        << where(call.x_rows, rows, cols);
  }
}

TEST_P(PromptMatmul, SeveralProductsAddWithBias) {
  Random random(29 + static_cast<unsigned>(GetParam()));
  const int cols = cols_near(512), x_rows = 150, rows[3] = {160, 33, 50};
  Inputs x(x_rows, cols, random);
  std::vector<std::unique_ptr<Weights>> weights;
  std::vector<std::unique_ptr<Array<float>>> biases, results;
  std::vector<std::unique_ptr<Entry>> entries;
  std::vector<std::vector<float>> want;
  MatmulCall call = call_of(Weights(GetParam(), 32, cols, random), x, nullptr, 0);
  call.count = 3;
  call.effect = Effect::add;
  for (std::size_t i = 0; i < 3; ++i) {
    weights.push_back(std::make_unique<Weights>(GetParam(), rows[i], cols, random));
    std::vector<float> bias(static_cast<std::size_t>(rows[i])), old(static_cast<std::size_t>(x_rows * rows[i]));
    for (float& v : bias) v = random.normal();
    for (float& v : old) v = random.normal();
    biases.push_back(std::make_unique<Array<float>>(bias));
    entries.push_back(std::make_unique<Entry>(biases.back()->at_bytes()));
    results.push_back(std::make_unique<Array<float>>(old));
    Array<float> plain(old.size());
    ok(matmul_prompt(call_of(*weights[i], x, plain.get(), rows[i]), nullptr));
    std::vector<float> sums = plain.host();
    for (std::size_t at = 0; at < sums.size(); ++at)
      sums[at] = old[at] + (i == 1 ? sums[at] : sums[at] + bias[at % bias.size()]);
    want.push_back(std::move(sums));
    call.products[i] = {weights[i]->matrix(), i == 1 ? nullptr : entries[i]->get(), results[i]->get(), rows[i]};
  }
  ok(matmul_prompt(call, nullptr));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(test::same_bits(results[i]->host(), want[i])) << where(x_rows, rows[i], cols) << " product " << i;
  }
}

TEST_P(PromptMatmul, GatesRoundWhatTheyStore) {
  Random random(31 + static_cast<unsigned>(GetParam()));
  struct Size {
    int x_rows, rows;
    Activation activation;
  };
  for (const Size size : {Size{9, 96, Activation::limited}, Size{70, 72, Activation::gelu},
                          Size{75, 100, Activation::bounded}, Size{300, 160, Activation::silu}}) {
    const int cols = cols_near(768);
    const Weights gate(GetParam(), size.rows, cols, random), up(GetParam(), size.rows, cols, random);
    Inputs x(size.x_rows, cols, random);
    const auto count = static_cast<std::size_t>(size.x_rows * size.rows);
    Array<float> gates(count), ups(count), y(count);
    Array<Bf16> bits(count);
    ok(matmul_prompt(call_of(gate, x, gates.get(), size.rows), nullptr));
    ok(matmul_prompt(call_of(up, x, ups.get(), size.rows), nullptr));
    std::vector<float> want = gates.host();
    const std::vector<float> factors = ups.host();
    const Activation activation = size.activation;
    constexpr float kLimit = 0.5f;
    kernels::table(device::Isa::plain)
        .gate_mul(activation, kLimit, want.data(), factors.data(), static_cast<std::int64_t>(count));
    MatmulCall call = call_of(gate, x, y.get(), size.rows);
    call.products[1] = {up.matrix(), nullptr, nullptr, 0};
    call.count = 2;
    call.effect = Effect::gated;
    call.activation = activation;
    call.limit = kLimit;
    call.y_bf16 = bits.get();
    for (const int width : {256, 128, 64, 32}) {
      prompt_forced_width = width;
      ok(cudaMemset(bits.get(), 0xA5, count * sizeof(Bf16)));
      ok(matmul_prompt(call, nullptr));
      EXPECT_TRUE(test::same_bits(y.host(), want)) << where(size.x_rows, size.rows, cols);
      const std::vector<Bf16> got = bits.host();
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < count; ++i) wrong += got[i] != bf16(want[i]) ? 1 : 0;
      EXPECT_EQ(wrong, 0U) << where(size.x_rows, size.rows, cols);
    }
    prompt_forced_width = 0;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, PromptMatmul, testing::ValuesIn(test::kQuantized),
                         [](const auto& param) { return std::string(millrace::info(param.param).name); });

TEST(ToBf16, RoundsToNearestEven) {
  if (!test::has_device()) GTEST_SKIP() << "no CUDA device";
  Random random(3);
  std::vector<float> values;
  for (int i = 0; i < 8 * 300; ++i) values.push_back(random.normal() * std::exp2(static_cast<float>(i % 60 - 30)));
  values[7] = std::bit_cast<float>(0x3F808000U);
  values[8] = std::bit_cast<float>(0x3F818000U);
  values[9] = INFINITY;
  const Array<float> x(values);
  const Array<Bf16> out(values.size());
  ok(to_bf16(x.get(), static_cast<std::int64_t>(values.size()), out.get(), nullptr));
  const std::vector<Bf16> got = out.host();
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(got[i], bf16(values[i])) << i << ": " << values[i];
}

}  // namespace
}  // namespace millrace::kernels::cuda

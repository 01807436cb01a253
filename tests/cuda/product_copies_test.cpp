// Prompts' products whose result is part of a wider buffer, and goes to other devices' memory as well (here all are
// one's): the bits of the same product alone, in every width of the kernel, and nothing beside its columns.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cuda/on_device.h"
#include "cuda/weights.h"
#include "kernels/cuda/launchers.h"

namespace millrace::kernels::cuda {

extern int prompt_forced_width;

namespace {

using test::Array;
using test::ok;
using test::Random;

constexpr int kCols = 512, kWide = 416, kFirst = 64;  // of x; of the whole result; where the product's begin

struct Weights {
  Weights(DType dtype, int rows, Random& random)
      : rows(rows), dtype(dtype), device(test::random_weights(dtype, rows, kCols, random)), entry(device.at_bytes()) {}
  Matrix matrix() const { return {entry.get(), dtype, rows}; }
  int rows;
  DType dtype;
  Array<std::byte> device;
  test::Entry entry;
};

/// A result, [x_rows, cols]: floats, or bfloat16 of a pair.
struct Result {
  Result(int x_rows, int cols)
      : x_rows(x_rows), cols(cols), y(static_cast<std::size_t>(x_rows * cols)), halves(y.host().size()) {}
  ProductCopies::Copy columns(int first, Effect effect) const {
    ProductCopies::Copy at;
    if (effect == Effect::gated)
      at.y_bf16 = halves.get() + first;
    else
      at.y = y.get() + first;
    return at;
  }
  int x_rows, cols;
  Array<float> y;
  Array<Bf16> halves;
};

class ProductCopiesTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!test::has_device()) GTEST_SKIP() << "no CUDA device";
    if (!has_prompt_product(prompt_products(), GetParam())) GTEST_SKIP() << "the device has none with such weights";
  }
  void TearDown() override { prompt_forced_width = 0; }

  static void compare(MatmulCall call, int rows, Effect effect) {
    const int x_rows = call.x_rows;
    call.effect = effect;
    const auto aim = [&](const ProductCopies::Copy& at, int cols) {
      call.products[0].y = at.y;
      call.products[0].y_stride = call.y_bf16_cols = cols;
      call.y_bf16 = at.y_bf16;
    };
    const Result alone(x_rows, rows);
    std::vector<std::unique_ptr<Result>> wide;
    for (int i = 0; i < 3; ++i) wide.push_back(std::make_unique<Result>(x_rows, kWide));
    aim(alone.columns(0, effect), rows);
    ok(matmul_prompt(call, {}));
    aim(wide[0]->columns(kFirst, effect), kWide);
    for (int i = 1; i < 3; ++i)
      call.also.copies[call.also.count++] = wide[static_cast<std::size_t>(i)]->columns(kFirst, effect);
    ok(matmul_prompt(call, {}));
    test::sync();
    for (const auto& one : wide) expect_columns(*one, alone);
  }

  /// Whatever has been written or not: in the product's columns of all rows, and nowhere else.
  static void expect_columns(const Result& wide, const Result& alone) {
    const Result untouched(wide.x_rows, wide.cols);
    const auto compare = [&](const auto& got, const auto& want, const auto& before, const char* form) {
      for (int r = 0; r < wide.x_rows; ++r)
        for (int c = 0; c < wide.cols; ++c) {
          const auto at = static_cast<std::size_t>(r * wide.cols + c);
          const int own = c - kFirst;
          const bool inside = own >= 0 && own < alone.cols;
          const auto& expected = inside ? want[static_cast<std::size_t>(r * alone.cols + own)] : before[at];
          ASSERT_EQ(std::memcmp(&got[at], &expected, sizeof(expected)), 0) << form << ", row " << r << ", column " << c;
        }
    };
    compare(wide.y.host(), alone.y.host(), untouched.y.host(), "floats");
    compare(wide.halves.host(), alone.halves.host(), untouched.halves.host(), "bfloat16");
  }
};

TEST_P(ProductCopiesTest, AreTheProductItself) {
  Random random(20261127);
  std::mt19937 engine(8);
  const Array<float> floats(test::normal_floats(300 * kCols, engine));
  const Array<Bf16> halves(300 * kCols);
  ok(to_bf16(floats.get(), 300 * kCols, halves.get(), nullptr));
  const bool by_int8 = prompt_products() == PromptProducts::int8;
  const Array<std::byte> room(prompt_int8_bytes(300, kCols));
  for (const int rows : {32, 96, 288}) {
    const Weights weight(GetParam(), rows, random), up(GetParam(), rows, random);
    for (const int x_rows : {9, 129, 300}) {
      for (const int width : {32, 64, 128, 256}) {
        SCOPED_TRACE(testing::Message() << x_rows << " x " << rows << ", width " << width);
        prompt_forced_width = width;
        for (const Effect effect : {Effect::store, Effect::add, Effect::gated}) {
          MatmulCall call;
          call.cols = kCols;
          call.x_rows = x_rows;
          if (by_int8) {
            call.x_rounded = prompt_int8_at(room.get(), x_rows, kCols);
            ok(round_prompt(halves.get(), x_rows, kCols, call.x_rounded, nullptr));
          } else {
            call.x_bf16 = halves.get();
          }
          call.products[0] = {weight.matrix()};
          call.products[1] = {up.matrix()};
          call.count = effect == Effect::gated ? 2 : 1;
          compare(call, rows, effect);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ProductCopiesTest,
                         testing::Values(DType::q8_0, DType::q4_k, DType::q6_k, DType::mxfp4),
                         [](const auto& of) { return std::string(millrace::info(of.param).name); });

}  // namespace
}  // namespace millrace::kernels::cuda

// matmul() and matmul_experts() with quantized weights against a host implementation of ops.h's NUMERICS, bit
// for bit, over all dtypes and odd shapes; and that implementation against tensor/codec.h by tolerance.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/contract.h"
#include "cuda/on_device.h"
#include "cuda/weights.h"
#include "kernels/cuda/launchers.h"
#include "kernels/kernels.h"
#include "tensor/blocks.h"
#include "tensor/codec.h"

namespace millrace::kernels::cuda {

extern int matmul_forced_shape;  // of matmul.cu

namespace {

using test::kQuantized;
using test::Quantized;
using test::quantized_row;
using test::Random;
using test::random_weights;

bool has_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}
#define MILLRACE_NEED_DEVICE() \
  if (!has_device()) GTEST_SKIP() << "no CUDA device"

void check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

/// Device memory, filled with a pattern that no result has.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T) + 256));
    check(cudaMemset(data_, 0xA5, count * sizeof(T) + 256));
  }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) {
    check(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> host(count_);
    check(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

/// Activations on the host and the device.
struct Input {
  Input(int rows, int cols, Random& random)
      : rows(rows),
        cols(cols),
        q(static_cast<std::size_t>(rows * cols)),
        scale(static_cast<std::size_t>(rows * cols / 32)),
        values(q.size()),
        memory(q8_bytes(rows, cols)) {
    for (auto& v : values) v = random.normal() * (random.below(40) == 0 ? 20.0F : 1.0F);
    if (values.size() > 96) std::fill(values.begin() + 32, values.begin() + 64, 0.0F);
    quantize(values, rows, cols, q, scale);
    device = q8_at(memory.data(), rows, cols);
    check(cudaMemcpy(device.q, q.data(), q.size(), cudaMemcpyHostToDevice));
    check(cudaMemcpy(device.scale, scale.data(), scale.size() * sizeof(Q8Scale), cudaMemcpyHostToDevice));
  }

  static void quantize(const std::vector<float>& x, int rows, int cols, std::vector<std::int8_t>& q,
                       std::vector<Q8Scale>& scale) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(kernels::q8_bytes(rows, cols)));
    const Q8Rows out = q8_rows_at(bytes.data(), rows, cols);
    table(Isa::plain).quantize_q8(x.data(), cols, rows, cols, out);
    std::copy(out.q, out.q + q.size(), q.begin());
    for (std::size_t i = 0; i < scale.size(); ++i) {
      Q8Scale& s = scale[i];
      s.d = out.d[i];
      s.s16[0] = static_cast<std::int16_t>(out.sum16[2 * i]);
      s.s16[1] = static_cast<std::int16_t>(out.sum16[2 * i + 1]);
      s.s = s.s16[0] + s.s16[1];
      s.ds = s.d * static_cast<float>(s.s);
    }
  }

  int rows, cols;
  std::vector<std::int8_t> q;
  std::vector<Q8Scale> scale;
  std::vector<float> values;
  DeviceArray<std::byte> memory;
  Q8 device;
};

/// The contract's dot product of a weight row and row r of x.
float dot(const Quantized& w, const Input& x, int r) {
  float total = 0, acc = 0;
  for (int k = 0; k < x.cols; k += w.group) {
    if (k % kSegment == 0) acc = 0;
    const Q8Scale& scale = x.scale[static_cast<std::size_t>((r * x.cols + k) / 32)];
    int integer = 0, sum = 0;
    for (int i = k; i < k + w.group; ++i) {
      const int q = x.q[static_cast<std::size_t>(r * x.cols + i)];
      integer += w.q[static_cast<std::size_t>(i)] * q;
      sum += q;
    }
    const auto g = static_cast<std::size_t>(k / w.group);
    const float product = w.scale[g] * scale.d;
    acc = test::fused(product, static_cast<float>(integer), acc);
    if (w.has_min) {
      const float ds = scale.d * static_cast<float>(sum);
      acc = test::fused(-w.min[g], ds, acc);
    }
    const int end = k + w.group;
    if (end % kSegment == 0 || end == x.cols) total += acc;
  }
  return total;
}

constexpr float kLimit = 0.5f;  // of Activation::limited and bounded

float gated(Activation activation, float limit, float gate, float up) {
  kernels::table(device::Isa::plain).gate_mul(activation, limit, &gate, &up, 1);
  return gate;
}

/// A matrix on the host and the device, with its entry in the table of addresses.
struct TestMatrix {
  TestMatrix(DType dtype, int rows, int cols, Random& random)
      : dtype(dtype),
        rows(rows),
        bytes(random_weights(dtype, rows, cols, random)),
        device(bytes),
        table(std::vector<const std::byte*>{device.data()}) {
    for (int n = 0; n < rows; ++n)
      decoded.push_back(quantized_row(dtype, bytes.data() + n * row_bytes(dtype, cols), cols));
  }
  Matrix matrix() const { return {table.data(), dtype, rows}; }

  DType dtype;
  int rows;
  std::vector<std::byte> bytes;
  DeviceArray<std::byte> device;
  DeviceArray<const std::byte*> table;
  std::vector<Quantized> decoded;
};

struct Bias {
  Bias(int rows, Random& random) : values(static_cast<std::size_t>(rows)) {
    for (auto& v : values) v = random.normal();
    device = std::make_unique<DeviceArray<float>>(values);
    table = std::make_unique<DeviceArray<const std::byte*>>(
        std::vector<const std::byte*>{reinterpret_cast<const std::byte*>(device->data())});
  }
  std::vector<float> values;
  std::unique_ptr<DeviceArray<float>> device;
  std::unique_ptr<DeviceArray<const std::byte*>> table;
};

std::string where(DType dtype, int x_rows, int rows, int cols) {
  return std::string(info(dtype).name) + " x_rows " + std::to_string(x_rows) + " rows " + std::to_string(rows) +
         " cols " + std::to_string(cols);
}

/// Counts and shows bits that differ.
void expect_same(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  std::size_t wrong = 0, at = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], 4) != 0 && wrong++ == 0) at = i;
  }
  EXPECT_EQ(wrong, 0U) << what << ": of " << got.size() << ", first at " << at << ": " << got[at] << " for "
                       << want[at];
}

void expect_same(const Q8& got, const std::vector<float>& want, int rows, int cols, const std::string& what) {
  std::vector<std::int8_t> q(want.size()), got_q(want.size());
  std::vector<Q8Scale> scale(want.size() / 32), got_scale(want.size() / 32);
  Input::quantize(want, rows, cols, q, scale);
  check(cudaMemcpy(got_q.data(), got.q, got_q.size(), cudaMemcpyDeviceToHost));
  check(cudaMemcpy(got_scale.data(), got.scale, got_scale.size() * sizeof(Q8Scale), cudaMemcpyDeviceToHost));
  EXPECT_EQ(q, got_q) << what;
  EXPECT_EQ(std::memcmp(scale.data(), got_scale.data(), scale.size() * sizeof(Q8Scale)), 0) << what;
}

/// Columns that the dtype allows, near `cols`: an odd number of blocks where it can.
int odd_cols(DType dtype, int cols) {
  if (info(dtype).block_elements == 64) return cols / 128 * 128 + 64;
  if (info(dtype).block_elements == 128) return cols / 256 * 256 + 128;
  return info(dtype).block_elements == 32 ? cols / 64 * 64 + 32 : std::max(cols / 256, 1) * 256;
}

TEST(MatmulReference, DecodesAsTheCodec) {
  Random random(7);
  for (const DType dtype : kQuantized) {
    const int cols = 512;
    const auto bytes = random_weights(dtype, 3, cols, random);
    for (int n = 0; n < 3; ++n) {
      const std::byte* row = bytes.data() + n * row_bytes(dtype, cols);
      const Quantized w = quantized_row(dtype, row, cols);
      std::vector<float> values(cols);
      decode_row(dtype, row, cols, values.data());
      for (int k = 0; k < cols; ++k) {
        const auto g = static_cast<std::size_t>(k / w.group);
        const double value =
            double{w.scale[g]} * w.q[static_cast<std::size_t>(k)] - (w.has_min ? double{w.min[g]} : 0.0);
        ASSERT_NEAR(value, double{values[static_cast<std::size_t>(k)]}, 1e-5) << info(dtype).name << " " << k;
      }
    }
  }
}

class MatmulTest : public testing::TestWithParam<DType> {};

struct Size {
  int x_rows, rows, cols;
};

TEST_P(MatmulTest, StoresTheContractsBits) {
  MILLRACE_NEED_DEVICE();
  Random random(11 + static_cast<unsigned>(GetParam()));
  // Few and many rows of x, beside the edges of every tile; columns beside the edges of segments.
  for (const Size size :
       {Size{5, 37, 1056}, Size{1, 64, 256}, Size{16, 33, 4160}, Size{17, 96, 800}, Size{40, 130, 2080},
        Size{64, 64, 32}, Size{65, 40, 288}, Size{130, 257, 544}, Size{300, 128, 1024}}) {
    const int cols = odd_cols(GetParam(), size.cols);
    const TestMatrix weight(GetParam(), size.rows, cols, random);
    const Input x(size.x_rows, cols, random);
    const int stride = size.rows + 3;
    std::vector<float> want(static_cast<std::size_t>(size.x_rows * stride));
    std::memset(want.data(), 0xA5, want.size() * sizeof(float));
    for (int r = 0; r < size.x_rows; ++r) {
      for (int n = 0; n < size.rows; ++n) {
        want[static_cast<std::size_t>(r * stride + n)] = dot(weight.decoded[static_cast<std::size_t>(n)], x, r);
      }
    }
    DeviceArray<float> y(want.size());
    MatmulCall call;
    call.products[0] = {weight.matrix(), nullptr, y.data(), stride};
    call.count = 1;
    call.cols = cols;
    call.x_rows = size.x_rows;
    call.x_q8 = x.device;
    check(matmul(call, nullptr));
    check(cudaDeviceSynchronize());
    expect_same(y.read(), want, where(GetParam(), size.x_rows, size.rows, cols));
  }
}

// Three products of one input, also where another shape would be chosen.
TEST_P(MatmulTest, EveryShapeGivesTheContractsBits) {
  MILLRACE_NEED_DEVICE();
  Random random(47 + static_cast<unsigned>(GetParam()));
  for (const Size size : {Size{7, 150, 1056}, Size{29, 70, 2304}, Size{64, 33, 800}}) {
    const int cols = odd_cols(GetParam(), size.cols), heights[] = {size.rows, 32, 5};
    const Input x(size.x_rows, cols, random);
    MatmulCall call;
    call.cols = cols;
    call.x_rows = size.x_rows;
    call.x_q8 = x.device;
    std::vector<std::unique_ptr<TestMatrix>> weights;
    std::vector<std::vector<float>> want;
    std::vector<std::unique_ptr<DeviceArray<float>>> y;
    for (const int rows : heights) {
      const TestMatrix& weight = *weights.emplace_back(std::make_unique<TestMatrix>(GetParam(), rows, cols, random));
      std::vector<float>& sums = want.emplace_back();
      for (int r = 0; r < size.x_rows; ++r)
        for (const Quantized& row : weight.decoded) sums.push_back(dot(row, x, r));
      y.push_back(std::make_unique<DeviceArray<float>>(sums.size()));
      call.products[call.count++] = {weight.matrix(), nullptr, y.back()->data(), rows};
    }
    for (int shape = 0; shape < 12; ++shape) {
      for (std::size_t i = 0; i < want.size(); ++i)
        check(cudaMemset(y[i]->data(), 0xA5, want[i].size() * sizeof(float)));
      matmul_forced_shape = shape;
      check(matmul(call, nullptr));
      matmul_forced_shape = -1;
      check(cudaDeviceSynchronize());
      for (std::size_t i = 0; i < want.size(); ++i) {
        expect_same(y[i]->read(), want[i],
                    where(GetParam(), size.x_rows, heights[i], cols) + " shape " + std::to_string(shape));
      }
    }
  }
}

TEST_P(MatmulTest, IsNearTheFloatProduct) {
  MILLRACE_NEED_DEVICE();
  Random random(23);
  const int rows = 96, cols = 1024, x_rows = 70;
  const TestMatrix weight(GetParam(), rows, cols, random);
  const Input x(x_rows, cols, random);
  DeviceArray<float> y(static_cast<std::size_t>(rows * x_rows));
  MatmulCall call;
  call.products[0] = {weight.matrix(), nullptr, y.data(), rows};
  call.count = 1;
  call.cols = cols;
  call.x_rows = x_rows;
  call.x_q8 = x.device;
  check(matmul(call, nullptr));
  const std::vector<float> got = y.read();
  std::vector<float> w(static_cast<std::size_t>(cols));
  double error = 0, norm = 0;
  for (int n = 0; n < rows; ++n) {
    decode_row(GetParam(), weight.bytes.data() + n * row_bytes(GetParam(), cols), cols, w.data());
    for (int r = 0; r < x_rows; ++r) {
      double exact = 0;
      for (int k = 0; k < cols; ++k) {
        exact += double{w[static_cast<std::size_t>(k)]} * double{x.values[static_cast<std::size_t>(r * cols + k)]};
      }
      const double difference = exact - double{got[static_cast<std::size_t>(r * rows + n)]};
      error += difference * difference;
      norm += exact * exact;
    }
  }
  // Activations of 8 bits are the whole error: with outliers of 20 sigma a step is about 0.1 of sigma.
  EXPECT_LT(std::sqrt(error / norm), 0.03) << info(GetParam()).name;
}

TEST_P(MatmulTest, GatesQuantizeWhatTheyStore) {
  MILLRACE_NEED_DEVICE();
  Random random(31 + static_cast<unsigned>(GetParam()));
  const DType other = GetParam() == DType::q4_0 ? DType::q6_k : GetParam();  // once, gate and up differ
  for (const Size size : {Size{9, 96, 512}, Size{33, 64, 768}, Size{140, 160, 512}}) {
    const TestMatrix gate(GetParam(), size.rows, size.cols, random), up(other, size.rows, size.cols, random);
    const Bias gate_bias(size.rows, random), up_bias(size.rows, random);
    const Activation activation = size.x_rows == 33  ? Activation::gelu
                                  : size.x_rows == 9 ? Activation::bounded
                                                     : Activation::limited;
    const Input x(size.x_rows, size.cols, random);
    std::vector<float> want;
    for (int r = 0; r < size.x_rows; ++r) {
      for (std::size_t n = 0; n < static_cast<std::size_t>(size.rows); ++n) {
        const float g = dot(gate.decoded[n], x, r) + gate_bias.values[n];
        want.push_back(gated(activation, kLimit, g, dot(up.decoded[n], x, r) + up_bias.values[n]));
      }
    }
    const std::string what = where(GetParam(), size.x_rows, size.rows, size.cols);
    DeviceArray<float> y(want.size());
    DeviceArray<std::byte> memory(q8_bytes(size.x_rows, size.rows));
    MatmulCall call;
    call.products[0] = {gate.matrix(), gate_bias.table->data(), y.data(), size.rows};
    call.products[1] = {up.matrix(), up_bias.table->data(), nullptr, 0};
    call.count = 2;
    call.effect = Effect::gated;
    call.activation = activation;
    call.limit = kLimit;
    call.cols = size.cols;
    call.x_rows = size.x_rows;
    call.x_q8 = x.device;
    call.y_q8 = q8_at(memory.data(), size.x_rows, size.rows);
    check(matmul(call, nullptr));
    check(cudaDeviceSynchronize());
    expect_same(y.read(), want, what);
    expect_same(call.y_q8, want, size.x_rows, size.rows, what);

    check(cudaMemset(memory.data(), 0xA5, q8_bytes(size.x_rows, size.rows)));
    call.products[0].y = nullptr;
    check(matmul(call, nullptr));
    check(cudaDeviceSynchronize());
    expect_same(call.y_q8, want, size.x_rows, size.rows, what);
  }
}

TEST_P(MatmulTest, AddsSeveralProductsWithBias) {
  MILLRACE_NEED_DEVICE();
  Random random(41 + static_cast<unsigned>(GetParam()));
  for (const int x_rows : {6, 150}) {
    const int cols = 512, rows[3] = {160, 32, 50};
    const DType dtypes[3] = {GetParam(), GetParam(), DType::q6_k};
    const Input x(x_rows, cols, random);
    std::vector<std::unique_ptr<TestMatrix>> weights;
    std::vector<std::unique_ptr<Bias>> biases;
    std::vector<std::unique_ptr<DeviceArray<float>>> results;
    std::vector<std::vector<float>> want(3);
    MatmulCall call;
    call.count = 3;
    call.effect = Effect::add;
    call.cols = cols;
    call.x_rows = x_rows;
    call.x_q8 = x.device;
    for (std::size_t i = 0; i < 3; ++i) {
      weights.push_back(std::make_unique<TestMatrix>(dtypes[i], rows[i], cols, random));
      biases.push_back(std::make_unique<Bias>(rows[i], random));
      std::vector<float> old(static_cast<std::size_t>(x_rows * rows[i]));
      for (auto& v : old) v = random.normal();
      results.push_back(std::make_unique<DeviceArray<float>>(old));
      for (int r = 0; r < x_rows; ++r) {
        for (std::size_t n = 0; n < static_cast<std::size_t>(rows[i]); ++n) {
          const float sum = dot(weights[i]->decoded[n], x, r) + (i == 1 ? 0.0F : biases[i]->values[n]);
          want[i].push_back(old[static_cast<std::size_t>(r * rows[i]) + n] + sum);
        }
      }
      call.products[i] = {weights[i]->matrix(), i == 1 ? nullptr : biases[i]->table->data(), results[i]->data(),
                          rows[i]};
    }
    check(matmul(call, nullptr));
    check(cudaDeviceSynchronize());
    for (std::size_t i = 0; i < 3; ++i) {
      expect_same(results[i]->read(), want[i],
                  where(dtypes[i], x_rows, rows[i], cols) + " product " + std::to_string(i));
    }
  }
}

/// Experts' matrices behind each other, every other entry of the table.
struct ExpertSet {
  ExpertSet(DType dtype, int experts, int rows, int cols, Random& random) {
    std::vector<const std::byte*> addresses;
    for (int e = 0; e < experts; ++e) {
      matrices.push_back(std::make_unique<TestMatrix>(dtype, rows, cols, random));
      addresses.push_back(matrices.back()->device.data());
      addresses.push_back(nullptr);
    }
    table = std::make_unique<DeviceArray<const std::byte*>>(addresses);
  }
  std::vector<std::unique_ptr<TestMatrix>> matrices;
  std::unique_ptr<DeviceArray<const std::byte*>> table;
};

TEST_P(MatmulTest, ExpertsTakeTheirEntries) {
  MILLRACE_NEED_DEVICE();
  Random random(53 + static_cast<unsigned>(GetParam()));
  for (const int x_rows : {3, 20, 90}) {
    const int experts = 7, top_k = 3, rows = 96, cols = 512, entries = x_rows * top_k;
    const DType up_dtype = GetParam() == DType::q4_k ? DType::q5_0 : GetParam();
    const ExpertSet gate(GetParam(), experts, rows, cols, random), up(up_dtype, experts, rows, cols, random);
    const Bias gate_bias(experts * rows, random), up_bias(experts * rows, random);
    const Bias scales(experts, random), up_scales(experts, random);
    const bool biased = x_rows != 20, scaled = x_rows != 3;
    const Activation activation = !biased ? Activation::silu : x_rows == 3 ? Activation::clamped : Activation::limited;
    const Input x(x_rows, cols, random);
    std::vector<std::int32_t> chosen, sorted, first{0};
    for (int e = 0; e < entries; ++e) chosen.push_back(random.below(4) == 0 ? 2 : random.below(experts - 1));
    for (int e = 0; e < experts; ++e) {
      for (int i = 0; i < entries; ++i) {
        if (chosen[static_cast<std::size_t>(i)] == e) sorted.push_back(i);
      }
      first.push_back(static_cast<std::int32_t>(sorted.size()));
    }
    const DeviceArray<std::int32_t> device_chosen(chosen), device_sorted(sorted), device_first(first);
    std::vector<float> want_gate, want_both;
    for (int i = 0; i < entries; ++i) {
      const auto expert = static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)]);
      for (std::size_t n = 0; n < static_cast<std::size_t>(rows); ++n) {
        float g = dot(gate.matrices[expert]->decoded[n], x, i / top_k);
        float u = dot(up.matrices[expert]->decoded[n], x, i / top_k);
        if (scaled) g *= scales.values[expert], u *= up_scales.values[expert];
        if (biased) g += gate_bias.values[expert * rows + n], u += up_bias.values[expert * rows + n];
        want_gate.push_back(g);
        want_both.push_back(gated(activation, kLimit, g, u));
      }
    }
    const std::string what = where(GetParam(), x_rows, rows, cols) + " of experts";
    DeviceArray<float> y(want_gate.size()), both(want_gate.size());
    DeviceArray<std::byte> memory(q8_bytes(entries, rows));
    ExpertCall call;
    call.weight = gate.table->data();
    call.address_stride = 2;
    call.dtype = GetParam();
    call.rows = rows;
    call.cols = cols;
    call.entries = entries;
    call.experts = experts;
    call.chosen = device_chosen.data();
    call.entries_per_x = top_k;
    call.sorted = device_sorted.data();
    call.expert_first = device_first.data();
    call.x_q8 = x.device;
    call.y = y.data();
    if (biased) call.bias = gate_bias.table->data();
    call.bias_stride = rows;
    if (scaled) call.scale = scales.table->data();
    check(matmul_experts(call, nullptr));
    call.effect = Effect::gated;
    call.activation = activation;
    call.limit = kLimit;
    if (biased) call.up_bias = up_bias.table->data();
    if (scaled) call.up_scale = up_scales.table->data();
    call.up = up.table->data();
    call.up_dtype = up_dtype;
    call.y = both.data();
    call.y_q8 = q8_at(memory.data(), entries, rows);
    check(matmul_experts(call, nullptr));
    check(cudaDeviceSynchronize());
    expect_same(y.read(), want_gate, what);
    expect_same(both.read(), want_both, what);
    expect_same(call.y_q8, want_both, entries, rows, what);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, MatmulTest, testing::ValuesIn(kQuantized),
                         [](const auto& info) { return std::string(millrace::info(info.param).name); });

}  // namespace
}  // namespace millrace::kernels::cuda

// Products of few rows, of experts, and of floats on the GPU: the bits of the numerics contract of ops.h,
// written down plainly for the host in contract.h, over odd shapes; and that contract against decoded weights in
// double.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/contract.h"
#include "kernels/cuda/capability.h"
#include "kernels/cuda/float_matmul.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/kernels.h"
#include "tensor/block_fields.h"
#include "tensor/codec.h"

namespace millrace::kernels::cuda {
namespace {

using Rng = std::mt19937;
using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;
using test::float_dtype;

static_assert(kSegment == test::kContractSegment);

/// One row of activations, as floats and as int8.
struct Row {
  Floats x;
  std::vector<std::int8_t> q;
  std::vector<Q8Scale> scale;
  Floats d;  // of the scales
};

Row make_row(const Floats& x) {
  Row row{x, {}, {}, {}};
  const std::int64_t n = static_cast<std::int64_t>(x.size());
  if (n % 32 != 0) return row;
  Bytes memory(static_cast<std::size_t>(kernels::q8_bytes(1, n)));
  const kernels::Q8Rows q8 = kernels::q8_rows_at(memory.data(), 1, n);
  kernels::table(device::Isa::plain).quantize_q8(x.data(), n, 1, n, q8);
  row.q.assign(q8.q, q8.q + n);
  for (std::int64_t b = 0; b < n / 32; ++b) {
    Q8Scale s;
    s.d = q8.d[b];
    s.s16[0] = static_cast<std::int16_t>(q8.sum16[2 * b]);
    s.s16[1] = static_cast<std::int16_t>(q8.sum16[2 * b + 1]);
    s.s = s.s16[0] + s.s16[1];
    s.ds = s.d * static_cast<float>(s.s);
    row.scale.push_back(s);
    row.d.push_back(s.d);
  }
  return row;
}

float contract_dot(DType dtype, const std::byte* weights, std::int64_t cols, const Row& row) {
  return test::contract_dot(dtype, weights, cols, row.x.data(), row.q.data(), row.d.data());
}

float gated(Activation activation, float limit, float gate, float up) {
  kernels::table(device::Isa::plain).gate_mul(activation, limit, &gate, &up, 1);
  return gate;
}

// ---------------------------------------------------------------------------------------------------------------------
// Random inputs

/// Random blocks whose scales are small finite numbers.
Bytes random_matrix(DType dtype, std::int64_t rows, std::int64_t cols, Rng& rng) {
  const std::int64_t bytes = rows * row_bytes(dtype, cols);
  Bytes out(static_cast<std::size_t>(bytes));
  std::normal_distribution<float> normal;
  if (float_dtype(dtype)) {
    Floats values(static_cast<std::size_t>(rows * cols));
    for (float& v : values) v = normal(rng);
    encode_row(dtype, values.data(), rows * cols, out.data());
    return out;
  }
  for (std::byte& b : out) b = static_cast<std::byte>(rng());
  const std::int64_t block_bytes = info(dtype).block_bytes;
  for (std::int64_t at = 0; at < bytes; at += block_bytes) {
    test::put_scales(
        dtype, out.data() + at, [&] { return 0.01F * normal(rng); }, [&] { return 120 + rng() % 12; });
  }
  return out;
}

Floats random_floats(std::int64_t n, Rng& rng) {
  std::normal_distribution<float> normal;
  Floats out(static_cast<std::size_t>(n));
  for (float& v : out) v = normal(rng) * (rng() % 16 == 0 ? 8.0F : 1.0F);
  return out;
}

// ---------------------------------------------------------------------------------------------------------------------
// Device memory

#define CUDA_OK(call) ASSERT_EQ(cudaSuccess, (call)) << cudaGetErrorString(cudaGetLastError())

/// Bytes on the device with 256 more after them.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  explicit DeviceBytes(std::size_t bytes) : bytes_(bytes) {
    EXPECT_EQ(cudaSuccess, cudaMalloc(&memory_, bytes + 256));
    EXPECT_EQ(cudaSuccess, cudaMemset(memory_, 0xa5, bytes + 256));
  }
  DeviceBytes(const void* host, std::size_t bytes) : DeviceBytes(bytes) {
    EXPECT_EQ(cudaSuccess, cudaMemcpy(memory_, host, bytes, cudaMemcpyHostToDevice));
  }
  template <typename T>
  explicit DeviceBytes(const std::vector<T>& host) : DeviceBytes(host.data(), host.size() * sizeof(T)) {}
  DeviceBytes(DeviceBytes&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBytes& operator=(DeviceBytes&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBytes() { cudaFree(memory_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  template <typename T>
  std::vector<T> read() const {
    std::vector<T> out(bytes_ / sizeof(T));
    EXPECT_EQ(cudaSuccess, cudaMemcpy(out.data(), memory_, bytes_, cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Device vectors and the table of their addresses.
class Addresses {
 public:
  template <typename T>
  int add(const std::vector<T>& host) {
    memory_.emplace_back(host);
    table_.push_back(memory_.back().template as<const std::byte>());
    return static_cast<int>(table_.size()) - 1;
  }
  void finish() { device_ = DeviceBytes(table_); }
  const std::byte* const* entry(int i) const { return device_.as<const std::byte*>() + i; }

 private:
  std::vector<DeviceBytes> memory_;
  std::vector<const std::byte*> table_;
  DeviceBytes device_;
};

/// Rows of activations on both sides.
struct Activations {
  std::vector<Row> rows;
  std::int64_t cols = 0, stride = 0;
  DeviceBytes x, q8;

  Activations(std::int64_t count, std::int64_t cols_, std::int64_t stride_, Rng& rng) : cols(cols_), stride(stride_) {
    Floats all(static_cast<std::size_t>(count * stride), std::numeric_limits<float>::quiet_NaN());
    std::vector<std::int8_t> q;
    std::vector<Q8Scale> scale;
    for (std::int64_t r = 0; r < count; ++r) {
      rows.push_back(make_row(random_floats(cols, rng)));
      std::copy(rows.back().x.begin(), rows.back().x.end(), all.begin() + r * stride);
      q.insert(q.end(), rows.back().q.begin(), rows.back().q.end());
      scale.insert(scale.end(), rows.back().scale.begin(), rows.back().scale.end());
    }
    x = DeviceBytes(all);
    if (q.empty()) return;
    q8 = DeviceBytes(q8_bytes(count, cols));
    const Q8 at = device_q8();
    EXPECT_EQ(cudaSuccess, cudaMemcpy(at.q, q.data(), q.size(), cudaMemcpyHostToDevice));
    EXPECT_EQ(cudaSuccess, cudaMemcpy(at.scale, scale.data(), scale.size() * sizeof(Q8Scale), cudaMemcpyHostToDevice));
  }
  Q8 device_q8() const {
    return q8.as<std::byte>() == nullptr ? Q8{}
                                         : q8_at(q8.as<std::byte>(), static_cast<std::int64_t>(rows.size()), cols);
  }
};

bool same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

void expect_same(const Floats& expected, const Floats& actual, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  int wrong = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (same_bits(expected[i], actual[i])) continue;
    if (++wrong <= 3) ADD_FAILURE() << what << ": [" << i << "] is " << actual[i] << ", not " << expected[i];
  }
  EXPECT_EQ(wrong, 0) << what << ", of " << expected.size();
}

/// That q8 on the device holds the int8 form of the rows.
void expect_q8(const Floats& rows, std::int64_t count, std::int64_t cols, const DeviceBytes& memory,
               const std::string& what) {
  const Q8 at = q8_at(memory.as<std::byte>(), count, cols);
  std::vector<std::int8_t> q(static_cast<std::size_t>(count * cols));
  std::vector<Q8Scale> scale(static_cast<std::size_t>(count * cols / 32));
  CUDA_OK(cudaMemcpy(q.data(), at.q, q.size(), cudaMemcpyDeviceToHost));
  CUDA_OK(cudaMemcpy(scale.data(), at.scale, scale.size() * sizeof(Q8Scale), cudaMemcpyDeviceToHost));
  for (std::int64_t r = 0; r < count; ++r) {
    const Row row = make_row(Floats(rows.begin() + r * cols, rows.begin() + (r + 1) * cols));
    ASSERT_EQ(0, std::memcmp(row.q.data(), q.data() + r * cols, row.q.size())) << what << ", row " << r;
    ASSERT_EQ(0, std::memcmp(row.scale.data(), scale.data() + r * (cols / 32), row.scale.size() * sizeof(Q8Scale)))
        << what << ", row " << r;
  }
}

class Matvec : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      cudaGetLastError();
      GTEST_SKIP() << "no CUDA device";
    }
  }
  void check_products(const std::vector<DType>& dtypes, const std::vector<std::int32_t>& rows, std::int64_t cols,
                      std::int32_t x_rows, Effect effect, bool with_bias, bool many);
  void check_gated(DType gate, DType up, std::int32_t rows, std::int64_t cols, std::int32_t x_rows, bool keep_y,
                   bool with_q8, bool many);
  void check_experts(DType dtype, DType up_dtype, Effect effect, std::int32_t rows, std::int64_t cols,
                     std::int32_t x_rows, std::int32_t top_k, bool shared_x, bool with_q8, bool many,
                     bool beside_shared = false);
  Rng rng_{20261121};
};

std::vector<DType> computable() {
  std::vector<DType> out;
  for (const DTypeInfo& entry : all_dtypes()) {
    if (entry.computable) out.push_back(entry.dtype);
  }
  return out;
}

std::string describe(DType dtype, std::int64_t rows, std::int64_t cols, std::int32_t x_rows) {
  return std::string(info(dtype).name) + " " + std::to_string(rows) + "x" + std::to_string(cols) + " for " +
         std::to_string(x_rows);
}

/// Products of one input by matvec, or by matmul_float if many.
void Matvec::check_products(const std::vector<DType>& dtypes, const std::vector<std::int32_t>& rows, std::int64_t cols,
                            std::int32_t x_rows, Effect effect, bool with_bias, bool many) {
  const Activations x(x_rows, cols, many ? cols + 3 : cols + 8, rng_);
  Addresses addresses;
  std::vector<Bytes> weights;
  std::vector<Floats> biases, addends, before;
  std::vector<DeviceBytes> y, added;
  for (std::size_t p = 0; p < dtypes.size(); ++p) {
    weights.push_back(random_matrix(dtypes[p], rows[p], cols, rng_));
    biases.push_back(random_floats(rows[p], rng_));
    before.push_back(random_floats(std::int64_t{x_rows} * (rows[p] + 1), rng_));
    addends.push_back(random_floats(std::int64_t{x_rows} * rows[p], rng_));
    added.emplace_back(addends.back());
    addresses.add(weights.back());
    addresses.add(biases.back());
    y.emplace_back(before.back());
  }
  addresses.finish();
  MatmulCall call;
  call.count = static_cast<int>(dtypes.size());
  call.effect = effect;
  call.cols = static_cast<std::int32_t>(cols);
  call.x_rows = x_rows;
  call.x = x.x.as<float>();
  call.x_stride = x.stride;
  call.x_q8 = x.device_q8();
  // Where biases are asked for, some products have addends in their place, if they may.
  const auto adds = [&](std::size_t p) {
    return with_bias && !many && p % 2 == 0 && gpu::has_addends(dtypes[p], cols, block_shared_bytes());
  };
  for (int p = 0; p < std::ssize(dtypes); ++p) {
    const auto i = static_cast<std::size_t>(p);
    call.products[p] = {{addresses.entry(2 * p), dtypes[i], rows[i]},
                        with_bias && !adds(i) ? addresses.entry(2 * p + 1) : nullptr,
                        y[i].as<float>(),
                        rows[i] + 1,
                        adds(i) ? added[i].as<float>() : nullptr};
  }
  CUDA_OK(many ? matmul_float(call, nullptr) : matvec(call, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  for (std::size_t p = 0; p < dtypes.size(); ++p) {
    Floats expected = before[p];
    for (std::int64_t m = 0; m < x_rows; ++m) {
      for (std::int64_t n = 0; n < rows[p]; ++n) {
        float v = contract_dot(dtypes[p], weights[p].data() + n * row_bytes(dtypes[p], cols), cols,
                               x.rows[static_cast<std::size_t>(m)]);
        if (with_bias && !adds(p)) v = v + biases[p][static_cast<std::size_t>(n)];
        if (adds(p)) v = v + addends[p][static_cast<std::size_t>(m * rows[p] + n)];
        float& at = expected[static_cast<std::size_t>(m * (rows[p] + 1) + n)];
        at = effect == Effect::add ? at + v : v;
      }
    }
    expect_same(expected, y[p].read<float>(), describe(dtypes[p], rows[p], cols, x_rows));
  }
}

void Matvec::check_gated(DType gate, DType up, std::int32_t rows, std::int64_t cols, std::int32_t x_rows, bool keep_y,
                         bool with_q8, bool many) {
  const Activations x(x_rows, cols, cols, rng_);
  Addresses addresses;
  const Bytes weights[2] = {random_matrix(gate, rows, cols, rng_), random_matrix(up, rows, cols, rng_)};
  const Floats biases[2] = {random_floats(rows, rng_), random_floats(rows, rng_)};
  for (const Bytes& w : weights) addresses.add(w);
  const Floats addends[2] = {random_floats(std::int64_t{x_rows} * rows, rng_),
                             random_floats(std::int64_t{x_rows} * rows, rng_)};
  const DeviceBytes added[2] = {DeviceBytes(addends[0]), DeviceBytes(addends[1])};
  const bool adds = !many && x_rows % 2 == 0;
  for (const Floats& b : biases) addresses.add(b);
  addresses.finish();
  const DeviceBytes y(static_cast<std::size_t>(x_rows) * rows * sizeof(float));
  const DeviceBytes q8(q8_bytes(x_rows, rows));
  MatmulCall call;
  call.count = 2;
  call.effect = Effect::gated;
  constexpr Activation kOfRows[] = {Activation::silu, Activation::gelu, Activation::limited, Activation::bounded};
  call.activation = kOfRows[(x_rows - 1) % 4];
  call.limit = 0.5f;
  call.cols = static_cast<std::int32_t>(cols);
  call.x_rows = x_rows;
  call.x = x.x.as<float>();
  call.x_stride = x.stride;
  call.x_q8 = x.device_q8();
  call.products[0] = {{addresses.entry(0), gate, rows}, addresses.entry(2), keep_y ? y.as<float>() : nullptr, rows};
  call.products[1] = {{addresses.entry(1), up, rows}, addresses.entry(3), nullptr, 0};
  for (const int p : {0, 1})
    if (adds) call.products[p].bias = nullptr, call.products[p].addend = added[p].as<float>();
  if (with_q8) call.y_q8 = q8_at(q8.as<std::byte>(), x_rows, rows);
  CUDA_OK(many ? matmul_float(call, nullptr) : matvec(call, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  Floats expected;
  for (std::int64_t m = 0; m < x_rows; ++m) {
    for (std::int64_t n = 0; n < rows; ++n) {
      const Row& row = x.rows[static_cast<std::size_t>(m)];
      const auto i = static_cast<std::size_t>(n);
      const auto at = static_cast<std::size_t>(m * rows + n);
      float g = contract_dot(gate, weights[0].data() + n * row_bytes(gate, cols), cols, row);
      float u = contract_dot(up, weights[1].data() + n * row_bytes(up, cols), cols, row);
      g += adds ? addends[0][at] : biases[0][i];
      u += adds ? addends[1][at] : biases[1][i];
      expected.push_back(gated(call.activation, call.limit, g, u));
    }
  }
  const std::string what = "gated " + describe(gate, rows, cols, x_rows);
  if (keep_y) expect_same(expected, y.read<float>(), what);
  if (with_q8) expect_q8(expected, x_rows, rows, q8, what);
}

void Matvec::check_experts(DType dtype, DType up_dtype, Effect effect, std::int32_t rows, std::int64_t cols,
                           std::int32_t x_rows, std::int32_t top_k, bool shared_x, bool with_q8, bool many,
                           bool beside_shared) {
  constexpr std::int32_t kExperts = 11;  // the last is never chosen, and so may be the one that all rows share
  const std::int32_t places = beside_shared ? top_k + 1 : top_k, entries = x_rows * places;
  const Activations x(shared_x ? x_rows : entries, cols, cols, rng_);
  Addresses addresses;
  std::vector<Bytes> weights;
  for (int e = 0; e < kExperts; ++e) {
    for (DType d : {dtype, up_dtype}) {
      weights.push_back(random_matrix(d, rows, cols, rng_));
      addresses.add(weights.back());
    }
  }
  const bool biased = x_rows % 2 == 1 && !beside_shared;
  const Floats biases[2] = {random_floats(kExperts * rows, rng_), random_floats(kExperts * rows, rng_)};
  for (const Floats& b : biases) addresses.add(b);
  const bool scaled = x_rows % 3 == 1 && !beside_shared;
  const Floats scales = random_floats(kExperts, rng_), up_scales = random_floats(kExperts, rng_);
  addresses.add(scales);
  addresses.add(up_scales);
  addresses.finish();
  std::vector<std::int32_t> chosen, sorted, first(kExperts + 1);
  for (int e = 0; e < entries; ++e) chosen.push_back(static_cast<std::int32_t>(rng_() % (kExperts - 1)));
  for (int e = 0; e < kExperts; ++e) {
    first[static_cast<std::size_t>(e)] = static_cast<std::int32_t>(sorted.size());
    for (int i = 0; i < entries; ++i) {
      if (chosen[static_cast<std::size_t>(i)] == e) sorted.push_back(i);
    }
  }
  first[kExperts] = entries;
  std::vector<std::int32_t> given;  // to the kernel
  for (int e = 0; e < entries; ++e) {
    const bool is_shared = beside_shared && e % places == top_k;
    if (is_shared) chosen[static_cast<std::size_t>(e)] = kExperts - 1;
    if (!is_shared) given.push_back(chosen[static_cast<std::size_t>(e)]);
  }
  const DeviceBytes chosen_device(given), sorted_device(sorted), first_device(first);
  const DeviceBytes y(static_cast<std::size_t>(entries) * rows * sizeof(float)), q8(q8_bytes(entries, rows));
  ExpertCall call;
  call.weight = addresses.entry(0);
  call.up = addresses.entry(1);
  call.address_stride = 2;
  call.dtype = dtype;
  call.up_dtype = up_dtype;
  call.effect = effect;
  call.activation = biased          ? Activation::clamped
                    : rows % 3 == 0 ? Activation::limited
                    : rows % 3 == 1 ? Activation::bounded
                                    : Activation::silu;
  call.limit = 0.5f;
  if (biased) call.bias = addresses.entry(2 * kExperts);
  if (biased) call.up_bias = addresses.entry(2 * kExperts + 1);
  if (scaled) call.scale = addresses.entry(2 * kExperts + 2);
  call.bias_stride = rows;
  if (scaled) call.up_scale = addresses.entry(2 * kExperts + 3);
  call.rows = rows;
  call.cols = static_cast<std::int32_t>(cols);
  call.entries = entries;
  call.experts = kExperts;
  call.chosen = chosen_device.as<std::int32_t>();
  call.entries_per_x = shared_x ? places : 1;
  if (beside_shared) {
    call.shared = addresses.entry(2 * (kExperts - 1));
    call.shared_up = addresses.entry(2 * (kExperts - 1) + 1);
    call.places = places;
  }
  call.sorted = sorted_device.as<std::int32_t>();
  call.expert_first = first_device.as<std::int32_t>();
  call.x = x.x.as<float>();
  call.x_q8 = x.device_q8();
  call.y = y.as<float>();
  if (with_q8) call.y_q8 = q8_at(q8.as<std::byte>(), entries, rows);
  CUDA_OK(many ? matmul_experts_float(call, nullptr) : matvec_experts(call, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  Floats expected;
  for (int e = 0; e < entries; ++e) {
    const Row& row = x.rows[static_cast<std::size_t>(e / call.entries_per_x)];
    const auto expert = static_cast<std::size_t>(chosen[static_cast<std::size_t>(e)]);
    for (std::int64_t n = 0; n < rows; ++n) {
      const auto bias = [&](int of) {
        return biased ? biases[of][expert * static_cast<std::size_t>(rows) + static_cast<std::size_t>(n)] : 0.0F;
      };
      float a = contract_dot(dtype, weights[2 * expert].data() + n * row_bytes(dtype, cols), cols, row);
      if (scaled) a = a * scales[expert];
      if (biased) a = a + bias(0);
      if (effect == Effect::store) {
        expected.push_back(a);
        continue;
      }
      const std::byte* up = weights[2 * expert + 1].data() + n * row_bytes(up_dtype, cols);
      float u = contract_dot(up_dtype, up, cols, row);
      if (scaled) u = u * up_scales[expert];
      if (biased) u = u + bias(1);
      expected.push_back(gated(call.activation, call.limit, a, u));
    }
  }
  const std::string what = "experts " + describe(dtype, rows, cols, x_rows);
  expect_same(expected, y.read<float>(), what);
  if (with_q8) expect_q8(expected, entries, rows, q8, what);
}

/// Lengths of rows: whole segments, cut ones where the block allows it, one that the tiles of a warp do not divide.
std::vector<std::int64_t> lengths(DType dtype) {
  std::vector<std::int64_t> out = {256, 768, 2048, 43 * 256};
  if (info(dtype).block_elements == 32) out.insert(out.end(), {32, 288, 896, 2880});
  if (info(dtype).block_elements == 64) out.insert(out.end(), {64, 320, 896, 2880});
  if (info(dtype).block_elements == 128) out.insert(out.end(), {128, 384, 896, 2944});
  if (info(dtype).block_elements == 1) out.insert(out.end(), {1, 7, 100, 264, 300, 2880});
  return out;
}

TEST_F(Matvec, EveryDtypeGivesTheContractsBits) {
  for (DType dtype : computable()) {
    int turn = 0;
    for (std::int64_t cols : lengths(dtype)) {
      for (std::int32_t x_rows = 1; x_rows <= kMatvecRows; ++x_rows) {
        const std::int32_t rows = std::vector<std::int32_t>{1, 37, 150, 301}[static_cast<std::size_t>(turn++ % 4)];
        check_products({dtype}, {rows}, cols, x_rows, Effect::store, x_rows % 2 == 0, false);
      }
    }
  }
}

TEST_F(Matvec, ProductsOfOneInputShareALaunch) {
  check_products({DType::q4_0, DType::q4_0, DType::q4_0}, {300, 37, 41}, 1024, 1, Effect::store, true, false);
  check_products({DType::q4_k, DType::q6_k, DType::q4_k}, {130, 70, 33}, 1024, 3, Effect::store, true, false);
  check_products({DType::q8_0, DType::f16}, {513, 2}, 4096, 2, Effect::store, false, false);
  check_products({DType::q4_k, DType::q4_k, DType::q4_k, DType::q4_k}, {700, 300, 32, 33}, 1024, 1, Effect::store, true,
                 false);
  check_products({DType::q8_0, DType::q8_0, DType::q8_0, DType::q8_0}, {130, 70, 5, 1}, 1024, 4, Effect::store, true,
                 false);
  check_products({DType::f32, DType::f32, DType::f32, DType::f32}, {1, 2, 3, 260}, 300, 3, Effect::store, false, false);
}

TEST_F(Matvec, AddsToTheResidual) {
  for (DType dtype : {DType::q4_0, DType::q8_0, DType::q4_k, DType::q6_k, DType::f16}) {
    check_products({dtype}, {1030}, 1536, 1, Effect::add, false, false);
    check_products({dtype}, {77}, 1536, 4, Effect::add, true, false);
  }
}

TEST_F(Matvec, GatesAndTheirInt8Form) {
  for (DType dtype : computable()) check_gated(dtype, dtype, 96, 768, 2, true, true, false);
  for (std::int32_t x_rows = 1; x_rows <= 4; ++x_rows) {
    check_gated(DType::q4_0, DType::q4_0, 1056, 2816, x_rows, false, true, false);
    check_gated(DType::q4_k, DType::q4_k, 37, 512, x_rows, true, false, false);
  }
  check_gated(DType::q8_0, DType::q8_0, 10016, 256, 1, true, true, false);
  check_gated(DType::q4_k, DType::q6_k, 352, 512, 3, true, true, false);
}

TEST_F(Matvec, ExpertsFollowTheRouting) {
  for (DType dtype : computable()) {
    check_experts(dtype, dtype, Effect::gated, 96, 512, 1, 8, true, true, false);
    check_experts(dtype, dtype, Effect::store, 200, 768, 1, 8, false, false, false);
  }
  check_experts(DType::q4_k, DType::q4_k, Effect::gated, 768, 2048, 4, 8, true, true, false);
  check_experts(DType::q4_k, DType::q4_k, Effect::store, 2048, 768, 4, 8, false, false, false);
  check_experts(DType::mxfp4, DType::mxfp4, Effect::gated, 64, 2880, 3, 4, true, true, false);
  check_experts(DType::q4_k, DType::q6_k, Effect::gated, 64, 512, 2, 4, true, true, false);
  check_experts(DType::q8_0, DType::q8_0, Effect::store, 7, 256, 2, 2, false, false, false);
}

TEST_F(Matvec, AMatrixThatAllRowsShareGoesWithTheExperts) {
  for (DType dtype : {DType::f32, DType::f16, DType::q8_0, DType::q4_k, DType::q6_k, DType::mxfp4}) {
    for (std::int32_t x_rows : {1, 2, 7}) {
      check_experts(dtype, dtype, Effect::gated, 96, 512, x_rows, 8, true, true, false, true);
      check_experts(dtype, dtype, Effect::store, 201, 768, x_rows, 8, false, false, false, true);
      check_experts(dtype, dtype, Effect::gated, 64, 256, x_rows, 1, true, true, false, true);
    }
  }
  check_experts(DType::q4_k, DType::q4_k, Effect::gated, 512, 2048, 1, 8, true, true, false, true);
  check_experts(DType::q4_k, DType::q4_k, Effect::store, 2048, 512, 1, 8, false, false, false, true);
  check_experts(DType::q4_k, DType::q6_k, Effect::gated, 64, 512, 2, 4, true, true, false, true);
}

/// Rows of MXFP4, NVFP4, Q1_0 and Q2_0 that are no whole segments are copied as they lie, several at once, and begin at
/// any byte.
TEST_F(Matvec, RowsThatLiePackedGiveTheContractsBits) {
  for (const DType dtype : {DType::mxfp4, DType::nvfp4, DType::q1_0, DType::q2_0, DType::q8_0}) {
    for (const std::int64_t cols : {32, 96, 192, 288, 480, 832, 2880, 5664}) {
      if (cols % info(dtype).block_elements != 0) continue;
      for (const std::int32_t rows : {1, 2, 3, 67, 263, 1031}) {
        const std::int32_t x_rows = 1 + rows % kMatvecRows;
        check_products({dtype}, {rows}, cols, x_rows, Effect::store, rows % 2 == 0, false);
        check_products({dtype, dtype}, {rows, 5}, cols, 1, Effect::add, true, false);
      }
      for (std::int32_t x_rows = 1; x_rows <= 3; ++x_rows) {
        check_gated(dtype, dtype, 37 + 5 * x_rows, cols, x_rows, true, false, false);
        check_gated(dtype, dtype, 352, cols, x_rows, true, true, false);
        check_experts(dtype, dtype, Effect::gated, 96, cols, x_rows, 4, true, true, false);
        check_experts(dtype, dtype, Effect::store, 131, cols, x_rows, 4, false, false, false);
      }
    }
    const std::int64_t wide = 2880 / info(dtype).block_elements * info(dtype).block_elements;
    check_experts(dtype, dtype, Effect::gated, 2880, wide, 1, 4, true, true, false);
    check_experts(dtype, dtype, Effect::store, 2880, wide, 1, 4, false, false, false);
  }
}

TEST_F(Matvec, LongRowsAreWorkedInParts) {
  check_products({DType::q4_0}, {5}, 28672, 4, Effect::store, false, false);
  check_products({DType::q4_k}, {140}, 28672, 1, Effect::store, false, false);
  check_products({DType::f16}, {9}, 28672, 4, Effect::add, false, false);
  check_products({DType::f32}, {9}, 28676, 2, Effect::store, false, false);
  check_products({DType::q6_k, DType::f16}, {140, 3}, 16384, 4, Effect::store, true, false);
  check_products({DType::q4_0}, {37}, 32768, 4, Effect::add, true, false);
}

TEST_F(Matvec, FloatsOfManyRowsGiveTheSameBits) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (std::int64_t cols : {1, 31, 256, 300, 520}) {
      check_products({dtype}, {65}, cols, 67, Effect::store, true, true);
      check_products({dtype, dtype}, {64, 3}, cols, 5, Effect::add, false, true);
    }
    check_gated(dtype, dtype, 96, 320, 70, true, true, true);
    check_experts(dtype, dtype, Effect::gated, 96, 320, 40, 5, true, true, true);
    check_experts(dtype, dtype, Effect::store, 33, 96, 40, 5, false, false, true);
  }
  check_gated(DType::f16, DType::f32, 64, 320, 3, false, true, true);
}

TEST_F(Matvec, RepeatedLaunchesGiveTheSameBitsWhileTheyOverlap) {
  constexpr std::int32_t kRows = 1024;
  constexpr std::int64_t kCols = 1024;
  const Activations x(1, kCols, kCols, rng_);
  Addresses addresses;
  const Bytes weight = random_matrix(DType::q4_0, kRows, kCols, rng_);
  addresses.add(weight);
  addresses.finish();
  constexpr int kTimes = 50;
  std::vector<DeviceBytes> y;
  MatmulCall call;
  call.count = 1;
  call.cols = kCols;
  call.x_rows = 1;
  call.x_q8 = x.device_q8();
  for (int i = 0; i < kTimes; ++i) y.emplace_back(kRows * sizeof(float));
  for (int i = 0; i < kTimes; ++i) {
    call.products[0] = {
        {addresses.entry(0), DType::q4_0, kRows}, nullptr, y[static_cast<std::size_t>(i)].as<float>(), kRows};
    CUDA_OK(matvec(call, nullptr));
  }
  CUDA_OK(cudaDeviceSynchronize());
  Floats expected;
  for (std::int64_t n = 0; n < kRows; ++n) {
    expected.push_back(contract_dot(DType::q4_0, weight.data() + n * row_bytes(DType::q4_0, kCols), kCols, x.rows[0]));
  }
  for (const DeviceBytes& each : y) expect_same(expected, each.read<float>(), "repeated");
}

/// The contract itself: int8 activations cost at most half a step each.
TEST_F(Matvec, TheContractIsTheProduct) {
  constexpr std::int64_t kCols = 768;
  for (DType dtype : computable()) {
    const Row row = make_row(random_floats(kCols, rng_));
    const Bytes weight = random_matrix(dtype, 1, kCols, rng_);
    Floats decoded(kCols);
    decode_row(dtype, weight.data(), kCols, decoded.data());
    double exact = 0, magnitude = 0, slack = 0;
    for (std::size_t k = 0; k < kCols; ++k) {
      exact += double{decoded[k]} * double{row.x[k]};
      magnitude += std::fabs(double{decoded[k]} * double{row.x[k]});
      if (!float_dtype(dtype)) slack += std::fabs(double{decoded[k]}) * double{row.scale[k / 32].d} / 2;
    }
    // Mins come off again, so that the terms are larger than what is left of them: 1e-4 of the magnitude is ample.
    EXPECT_NEAR(contract_dot(dtype, weight.data(), kCols, row), exact, slack + 1e-4 * magnitude) << info(dtype).name;
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda

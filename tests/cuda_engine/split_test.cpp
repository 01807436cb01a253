// The processor's half of shared products, with a real device on the other side: random shapes against the reference
// kernels, queued jobs in order, and a stream that is let go when a pass fails.

#include "exec/gpu/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "device/cpu.h"
#include "device/gpu.h"

namespace millrace::exec {
namespace {

class Split : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto gpus = device::gpus(); !gpus.ok()) GTEST_SKIP() << gpus.status().message();
    auto made = device::Stream::create();
    ASSERT_TRUE(made.ok());
    stream_ = std::move(*made);
    auto share = HostShare::create(kSizes, pool_, kernels::table(device::best_isa()), ram_, nullptr);
    ASSERT_TRUE(share.ok()) << share.status().message();
    share_ = std::move(*share);
  }

  static constexpr HostShare::Sizes kSizes{16, 1024, 4096};

  std::vector<float> random_floats(std::int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> made(static_cast<std::size_t>(count));
    for (float& value : made) value = normal(random_);
    return made;
  }
  /// Any bytes are a matrix, once its scales are small numbers.
  std::vector<std::byte> random_matrix(DType dtype, std::int64_t rows, std::int64_t cols) {
    if (dtype == DType::f32) {
      const std::vector<float> values = random_floats(rows * cols);
      std::vector<std::byte> bytes(values.size() * sizeof(float));
      std::memcpy(bytes.data(), values.data(), bytes.size());
      return bytes;
    }
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows * row_bytes(dtype, cols)));
    for (std::byte& value : bytes) value = static_cast<std::byte>(random_());
    const std::size_t block = dtype == DType::q4_k ? 144 : 34;
    const std::uint16_t scale = 0x2000;  // 2^-7
    for (std::size_t at = 0; at < bytes.size(); at += block) {
      std::memcpy(&bytes[at], &scale, 2);
      if (dtype == DType::q4_k) std::memcpy(&bytes[at + 2], &scale, 2);
    }
    return bytes;
  }
  std::vector<float> reference(DType dtype, const std::byte* weight, std::int64_t weight_rows, std::int64_t cols,
                               const std::vector<float>& x, std::int64_t rows) {
    const kernels::Table& table = kernels::table(kernels::Isa::plain);
    std::vector<std::byte> q8(static_cast<std::size_t>(kernels::q8_bytes(rows, cols))),
        workspace(static_cast<std::size_t>(table.matmul_segments_workspace_bytes(cols)) + 64);
    kernels::MatmulArgs args;
    args.dtype = dtype;
    args.weight = weight;
    args.weight_rows = weight_rows;
    args.cols = args.x_stride = cols;
    args.x = x.data();
    args.x_rows = rows;
    args.x_q8 = kernels::q8_rows_at(q8.data(), rows, cols);
    table.quantize_q8(x.data(), cols, rows, cols, args.x_q8);
    std::vector<float> y(static_cast<std::size_t>(rows * weight_rows));
    args.y = y.data();
    args.y_stride = weight_rows;
    args.workspace = workspace.data();
    table.matmul_segments(args);
    return y;
  }
  device::DeviceBuffer on_device(const std::vector<float>& values) {
    auto buffer = device::DeviceBuffer::allocate(values.size() * sizeof(float));
    EXPECT_TRUE(buffer.ok());
    EXPECT_TRUE(device::write_device(buffer->data(), values.data(), values.size() * sizeof(float)).ok());
    return std::move(*buffer);
  }
  std::vector<float> to_host(const device::DeviceBuffer& buffer) {
    std::vector<float> values(buffer.bytes() / sizeof(float));
    EXPECT_TRUE(device::read_device(values.data(), buffer.data(), buffer.bytes()).ok());
    return values;
  }

  /// One job with its launches, `x` handed out and the outputs taken in, until all of it is over.
  void work_off(HostShare::Job& job, kernels::gpu::TakeInCall& call, const device::DeviceBuffer& x, bool add) {
    job.number = call.number = share_->next_number();
    call.rows = static_cast<std::int32_t>(job.rows);
    call.add = add;
    call.flag = share_->device_output_flag();
    call.seen = share_->seen();
    ASSERT_TRUE(kernels::gpu::hand_out(reinterpret_cast<const float*>(x.data()), job.rows * job.cols,
                                       share_->device_input(), share_->device_input_flag(), job.number,
                                       share_->arrived(), stream_)
                    .ok());
    ASSERT_TRUE(kernels::gpu::take_in(call, stream_).ok());
    share_->add(job, stream_);
    ASSERT_TRUE(share_->finish().ok());
    ASSERT_TRUE(stream_.synchronise().ok());
  }

  std::mt19937 random_{7};
  ThreadPool pool_{{.threads = 3, .pin = false}};
  residency::Budget ram_{1u << 30};
  device::Stream stream_;
  std::unique_ptr<HostShare> share_;
};

TEST_F(Split, RowsOfTheProcessorLandBesideTheGpus) {
  struct Case {
    DType dtype;
    std::int64_t rows, cols;              // of x
    std::vector<std::int64_t> host, own;  // weight rows of the processor and of the GPU, by product
    bool swiglu, add, bias;
  };
  const Case cases[] = {
      {DType::q4_k, 1, 1024, {701}, {32}, false, true, false},
      {DType::q8_0, 3, 96, {33, 1, 160}, {64, 32, 96}, false, false, true},
      {DType::q4_k, 16, 256, {200}, {56}, true, false, false},
      {DType::f32, 2, 37, {5, 70}, {3, 1}, false, false, false},
      {DType::q8_0, 5, 512, {31}, {1}, true, false, false},
  };
  for (int round = 0; round < 3; ++round) {
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} x {} round {}", c.rows, c.cols, round));
      const std::vector<float> x = random_floats(c.rows * c.cols);
      const device::DeviceBuffer device_x = on_device(x);
      std::vector<std::vector<std::byte>> weights, ups;
      std::vector<std::vector<float>> biases, before;
      std::vector<device::DeviceBuffer> outs;
      HostShare::Job job;
      kernels::gpu::TakeInCall call;
      job.rows = c.rows;
      job.cols = c.cols;
      std::int64_t outputs = 0;
      for (std::size_t p = 0; p < c.host.size(); ++p) {
        const std::int64_t host = c.host[p], stride = host + c.own[p];
        weights.push_back(random_matrix(c.dtype, host, c.cols));
        ups.push_back(random_matrix(c.dtype, host, c.cols));
        biases.push_back(random_floats(host));
        before.push_back(random_floats(c.rows * stride));
        outs.push_back(on_device(before.back()));
        job.matrices[p] = {weights[p].data(),
                           c.swiglu ? ups[p].data() : nullptr,
                           c.bias ? biases[p].data() : nullptr,
                           c.dtype,
                           c.dtype,
                           host,
                           outputs};
        call.parts[p] = {share_->device_output() + outputs, reinterpret_cast<float*>(outs[p].data()) + c.own[p], stride,
                         static_cast<std::int32_t>(host)};
        outputs += c.rows * host;
      }
      job.count = call.count = static_cast<int>(c.host.size());
      ASSERT_LE(outputs, share_->output_floats());
      work_off(job, call, device_x, c.add);
      if (HasFatalFailure()) return;
      for (std::size_t p = 0; p < c.host.size(); ++p) {
        const std::int64_t host = c.host[p], stride = host + c.own[p];
        std::vector<float> wanted = reference(c.dtype, weights[p].data(), host, c.cols, x, c.rows);
        if (c.swiglu) {
          const std::vector<float> up = reference(c.dtype, ups[p].data(), host, c.cols, x, c.rows);
          kernels::table(kernels::Isa::plain)
              .gate_mul(kernels::Activation::silu, 0, wanted.data(), up.data(), c.rows * host);
        }
        const std::vector<float> got = to_host(outs[p]);
        for (std::int64_t r = 0; r < c.rows; ++r)
          for (std::int64_t i = 0; i < stride; ++i) {
            const auto at = static_cast<std::size_t>(r * stride + i);
            float value = before[p][at];
            if (i >= c.own[p]) {
              float computed = wanted[static_cast<std::size_t>(r * host + i - c.own[p])];
              if (c.bias) computed += biases[p][static_cast<std::size_t>(i - c.own[p])];
              value = c.add ? value + computed : computed;
            }
            ASSERT_EQ(got[at], value) << "product " << p << " row " << r << " column " << i;
          }
      }
    }
  }
}

TEST_F(Split, AFailedPassLetsTheStreamGo) {
  const device::DeviceBuffer out = on_device(random_floats(64));
  kernels::gpu::TakeInCall call;
  call.parts[0] = {share_->device_output(), reinterpret_cast<float*>(out.data()), 64, 64};
  call.count = call.rows = 1;
  call.flag = share_->device_output_flag();
  call.seen = share_->seen();
  for (int job = 0; job < 3; ++job) {  // launches whose jobs never come
    call.number = share_->next_number();
    ASSERT_TRUE(kernels::gpu::take_in(call, stream_).ok());
  }
  const auto idle = device::is_idle(stream_);
  ASSERT_TRUE(idle.ok());
  EXPECT_FALSE(*idle);
  share_->abandon();
  EXPECT_TRUE(stream_.synchronise().ok());
}

}  // namespace
}  // namespace millrace::exec

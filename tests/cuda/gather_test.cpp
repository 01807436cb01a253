// Columns of several devices brought together: here all "devices" are streams of one GPU, which write to each other's
// memory as several do. Every form, odd widths, many gathers one behind the other, and a device that never comes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "cuda/on_device.h"
#include "environment.h"
#include "kernels/cuda/launchers.h"

namespace millrace::kernels::cuda {
namespace {

using test::Array;
using test::normal_floats;
using test::ok;
using test::same_bits;
using test::sync;

// A kernel that is loaded while another waits might wait for it.
const bool kernels_come_first = (test::set_variable("CUDA_MODULE_LOADING", "EAGER"), true);

/// Whether all goes in words, as through the host's memory.
class CudaGather : public test::OnDevice, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    test::OnDevice::SetUp();
    if (IsSkipped()) return;
    for (cudaStream_t& stream : streams_) ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ok(cudaHostAlloc(reinterpret_cast<void**>(&failed_), sizeof(*failed_), cudaHostAllocMapped));
    *failed_ = 0;
  }
  void TearDown() override {
    for (cudaStream_t stream : streams_)
      if (stream != nullptr) cudaStreamDestroy(stream);
    if (failed_ != nullptr) cudaFreeHost(failed_);
  }

  /// One of `devices`, with [rows, cols] in all.
  GatherCall call_of(int index, int devices, std::int32_t rows, std::int32_t cols, const float* own) const {
    GatherCall call;
    call.own = own;
    call.rows = rows;
    call.cols = cols;
    call.devices = devices;
    call.index = index;
    call.failed = failed_;
    call.one_device = true;
    call.through_host = GetParam();
    return call;
  }

  static constexpr int kMost = 3;
  std::mt19937 random_{20261125};
  cudaStream_t streams_[kMost] = {};
  std::uint32_t* failed_ = nullptr;
};

/// Of one device: its state, and the words, which others write to.
std::unique_ptr<Array<std::byte>> gather_memory(int devices) {
  return std::make_unique<Array<std::byte>>(std::vector<std::byte>(kGatherStateBytes + gather_word_bytes(devices)));
}

GatherState* state_of(const std::unique_ptr<Array<std::byte>>& memory) {
  return reinterpret_cast<GatherState*>(memory->get());
}
std::byte* words_of(const std::unique_ptr<Array<std::byte>>& memory) { return memory->get() + kGatherStateBytes; }

struct Shape {
  std::int32_t rows, cols;
  std::vector<std::int32_t> borders;  // where each device's columns begin, and the end
};

TEST_P(CudaGather, BringsEveryFormToAll) {
  for (const Shape& shape : {Shape{1, 64, {0, 32, 64}},
                             {1, 8192, {0, 4096, 8192}},
                             {3, 416, {0, 128, 288, 416}},
                             {300, 1024, {0, 512, 1024}},
                             {2, 4096, {0, 4064, 4096}}}) {
    const int devices = static_cast<int>(shape.borders.size()) - 1;
    const auto all = static_cast<std::size_t>(shape.rows) * static_cast<std::size_t>(shape.cols);
    const std::vector<float> values = normal_floats(all, random_);
    std::vector<std::unique_ptr<Array<float>>> own, out;
    std::vector<std::unique_ptr<Array<std::byte>>> q8;
    std::vector<std::unique_ptr<Array<Bf16>>> bf16;
    std::vector<std::unique_ptr<Array<std::byte>>> memory;
    for (int d = 0; d < devices; ++d) {
      std::vector<float> columns;
      for (std::int32_t r = 0; r < shape.rows; ++r)
        for (std::int32_t c = shape.borders[d]; c < shape.borders[d + 1]; ++c)
          columns.push_back(values[static_cast<std::size_t>(r * shape.cols + c)]);
      own.push_back(std::make_unique<Array<float>>(columns));
      out.push_back(std::make_unique<Array<float>>(all));
      q8.push_back(std::make_unique<Array<std::byte>>(q8_bytes(shape.rows, shape.cols)));
      bf16.push_back(std::make_unique<Array<Bf16>>(all));
      memory.push_back(gather_memory(devices));
    }
    for (int d = 0; d < devices; ++d) {
      GatherCall call = call_of(d, devices, shape.rows, shape.cols, own[d]->get());
      for (int t = 0; t < devices; ++t)
        call.targets[t] = {shape.borders[t],   shape.borders[t + 1] - shape.borders[t],
                           out[t]->get(),      q8_at(q8[t]->get(), shape.rows, shape.cols),
                           bf16[t]->get(),     state_of(memory[t]),
                           words_of(memory[t])};
      ok(gather(call, streams_[d]));
    }
    sync();
    EXPECT_EQ(*failed_, 0u);
    const Array<float> whole(values);
    const Array<std::byte> quantized(q8_bytes(shape.rows, shape.cols));
    const Array<Bf16> halves(all);
    const Q8 reference = q8_at(quantized.get(), shape.rows, shape.cols);
    ok(quantize_q8(whole.get(), shape.cols, shape.rows, shape.cols, reference, nullptr));
    ok(to_bf16(whole.get(), static_cast<std::int64_t>(all), halves.get(), nullptr));
    const std::vector<std::byte> expected = quantized.host();
    const auto scales_at = static_cast<std::size_t>(reinterpret_cast<std::byte*>(reference.scale) - quantized.get());
    const std::size_t scale_bytes = all / 32 * sizeof(Q8Scale);
    for (int d = 0; d < devices; ++d) {
      SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.cols << ", device " << d);
      EXPECT_TRUE(same_bits(out[d]->host(), values));
      EXPECT_EQ(bf16[d]->host(), halves.host());
      const std::vector<std::byte> got = q8[d]->host();
      EXPECT_TRUE(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(all), expected.begin()));
      EXPECT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(scales_at),
                             got.begin() + static_cast<std::ptrdiff_t>(scales_at + scale_bytes),
                             expected.begin() + static_cast<std::ptrdiff_t>(scales_at)));
    }
  }
}

/// Those of a wave's entries: which rows, and how many, is on the devices.
TEST_P(CudaGather, BringsSomeRowsAlone) {
  constexpr int kRows = 12, kCols = 96, kOwn[] = {64, 32};
  const Array<std::int32_t> some({3, 8, 11, 0, 6, 2, 9}), border({0, 2, 5, 7});
  const std::vector<float> values = normal_floats(kRows * kCols, random_);
  std::vector<float> expected(values.size(), 0.0f);
  for (const int row : {11, 0, 6}) std::copy_n(values.begin() + row * kCols, kCols, expected.begin() + row * kCols);
  std::vector<std::unique_ptr<Array<float>>> own, out;
  std::vector<std::unique_ptr<Array<std::byte>>> memory;
  for (int d = 0, first = 0; d < 2; first += kOwn[d++]) {
    std::vector<float> columns;
    for (int r = 0; r < kRows; ++r)
      columns.insert(columns.end(), values.begin() + r * kCols + first, values.begin() + r * kCols + first + kOwn[d]);
    own.push_back(std::make_unique<Array<float>>(columns));
    out.push_back(std::make_unique<Array<float>>(std::vector<float>(values.size(), 0.0f)));
    memory.push_back(gather_memory(2));
  }
  for (int d = 0; d < 2; ++d) {
    GatherCall call = call_of(d, 2, kRows, kCols, own[static_cast<std::size_t>(d)]->get());
    call.some = some.get();
    call.begin = border.get() + 1;
    call.end = border.get() + 2;
    for (int t = 0; t < 2; ++t)
      call.targets[t] = {t == 0 ? 0 : kOwn[0],
                         kOwn[t],
                         out[static_cast<std::size_t>(t)]->get(),
                         {},
                         nullptr,
                         state_of(memory[static_cast<std::size_t>(t)]),
                         words_of(memory[static_cast<std::size_t>(t)])};
    ok(gather(call, streams_[d]));
  }
  sync();
  for (const auto& one : out) EXPECT_TRUE(same_bits(one->host(), expected));
}

TEST_P(CudaGather, AddsToWhatStandsThereAndTakesOddWidths) {
  const Shape shape{5, 97, {0, 64, 97}};  // a vocabulary's last rows are any number
  constexpr std::size_t kAll = 5 * 97;
  const std::vector<float> before = normal_floats(kAll, random_), values = normal_floats(kAll, random_);
  std::vector<float> sums = before;
  for (std::size_t i = 0; i < kAll; ++i) sums[i] += values[i];
  const Array<float> first(before), second(before);
  const auto first_memory = gather_memory(2), second_memory = gather_memory(2);
  std::vector<std::unique_ptr<Array<float>>> own;
  for (int d = 0; d < 2; ++d) {
    std::vector<float> columns;
    for (int r = 0; r < 5; ++r)
      for (int c = shape.borders[d]; c < shape.borders[d + 1]; ++c)
        columns.push_back(values[static_cast<std::size_t>(r * 97 + c)]);
    own.push_back(std::make_unique<Array<float>>(columns));
    GatherCall call = call_of(d, 2, 5, 97, own.back()->get());
    call.add = true;
    call.targets[0] = {0, 64, first.get(), {}, nullptr, state_of(first_memory), words_of(first_memory)};
    call.targets[1] = {64, 33, second.get(), {}, nullptr, state_of(second_memory), words_of(second_memory)};
    ok(gather(call, streams_[d]));
  }
  EXPECT_TRUE(same_bits(first.host(), sums));
  EXPECT_TRUE(same_bits(second.host(), sums));
}

TEST_P(CudaGather, AThousandOneBehindTheOther) {
  constexpr int kGathers = 1000, kCols = 256;
  // Two results take turns, as a layer's do.
  const Array<float> own(std::vector<float>(2 * 128, 1.0f));
  const Array<float> first(std::vector<float>(2 * kCols, 0.0f)), second(std::vector<float>(2 * kCols, 0.0f));
  const auto first_memory = gather_memory(2), second_memory = gather_memory(2);
  for (int i = 0; i < kGathers; ++i) {
    for (int d = 0; d < 2; ++d) {
      GatherCall call = call_of(d, 2, 1, kCols, own.get() + 128 * d);
      call.add = true;
      call.targets[0] = {
          0, 128, first.get() + i % 2 * kCols, {}, nullptr, state_of(first_memory), words_of(first_memory)};
      call.targets[1] = {
          128, 128, second.get() + i % 2 * kCols, {}, nullptr, state_of(second_memory), words_of(second_memory)};
      ok(gather(call, streams_[d]));
    }
  }
  const std::vector<float> counted(2 * kCols, kGathers / 2.0f);
  EXPECT_EQ(first.host(), counted);
  EXPECT_EQ(second.host(), counted);
  EXPECT_EQ(*failed_, 0u);
}

TEST_P(CudaGather, OneThatGivesUpFreesTheOthers) {
  const Array<float> own(std::vector<float>(32, 1.0f)), out(64);
  const auto first_memory = gather_memory(2), second_memory = gather_memory(2);
  GatherCall call = call_of(0, 2, 1, 64, own.get());
  call.targets[0] = {0, 32, out.get(), {}, nullptr, state_of(first_memory), words_of(first_memory)};
  call.targets[1] = {32, 32, out.get(), {}, nullptr, state_of(second_memory), words_of(second_memory)};
  ok(gather(call, streams_[0]));
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady) << "nobody else has come";
  *static_cast<volatile std::uint32_t*>(failed_) = 1;
  ok(cudaStreamSynchronize(streams_[0]));
  GatherState state;
  ok(cudaMemcpy(&state, first_memory->get(), sizeof(state), cudaMemcpyDeviceToHost));
  EXPECT_EQ(state.failed, 1u);
  // Those behind it wait no more.
  ok(gather(call, streams_[0]));
  ok(cudaStreamSynchronize(streams_[0]));
}

INSTANTIATE_TEST_SUITE_P(Ways, CudaGather, testing::Bool(),
                         [](const auto& info) { return info.param ? "in_words" : "straight"; });

}  // namespace
}  // namespace millrace::kernels::cuda

// What tests on a GPU begin with: a device whose free memory holds NaN, as a process that has run for a while finds it,
// and a comparison of logits that says where they part.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "device/gpu.h"
#include "engine/support.h"
#include "kernels/gpu/gates.h"

namespace millrace::engine::test {

/// Skips where there is no GPU.
class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto gpus = device::gpus(); !gpus.ok()) GTEST_SKIP() << gpus.status().message();
    poison();
  }

 private:
  /// A large piece, and small ones, which the driver takes from pages of their own.
  static void poison() {
    constexpr std::size_t kLarge = 128u << 20, kSmall = 256u << 10;
    std::vector<device::DeviceBuffer> pieces;
    const auto stream = device::Stream::create();
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    for (int i = 0; i < 33; ++i) {
      auto piece = device::DeviceBuffer::allocate(i == 0 ? kLarge : kSmall);
      if (!piece.ok()) break;
      ASSERT_TRUE(device::fill_device(piece->data(), 0xff, piece->bytes(), *stream).ok());
      pieces.push_back(std::move(*piece));
    }
    ASSERT_TRUE(stream->synchronise().ok());
  }
};

/// Whether the GPU refuses the model for want of shared memory, of which 7.5 has 64 KiB.
inline bool lacks_shared_memory(const EngineOptions& options) {
  const auto gpu = device::gpu(0);
  if (!gpu.ok() || gpu->block_shared_bytes >= kernels::gpu::kLeastBlockShared) return false;
  const Status status = Engine::create(options).status();
  return status.code() == Code::unsupported &&
         status.message().find("of shared memory, and this GPU gives") != std::string::npos;
}

/// Logits of `prompt` tokens of text and of what is decoded after them.
inline std::vector<float> logits_of(const EngineOptions& options, std::size_t prompt, std::int64_t decoded) {
  const auto engine = make(options);
  if (engine == nullptr) return {};
  std::vector<float> logits;
  Request request = greedy(real_text(*engine, prompt), decoded);
  keep_logits(request, logits);
  const Result result = engine->run(std::move(request));
  EXPECT_NE(result.finish, Finish::error) << result.status.message();
  return logits;
}

/// NaN is equal to NaN of the same bits.
inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_FALSE(a.empty());
  ASSERT_EQ(a.size(), b.size());
  const auto differs = [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) != std::bit_cast<std::uint32_t>(y);
  };
  std::size_t first = a.size(), count = 0;
  for (std::size_t i = a.size(); i-- > 0;)
    if (differs(a[i], b[i])) first = i, ++count;
  ASSERT_EQ(count, 0u) << "of " << a.size() << " floats; the first is " << first << ": " << a[first] << " and "
                       << b[first];
}

}  // namespace millrace::engine::test

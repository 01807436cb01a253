// Vulkan's device and its kernels where tests/cuda says nothing of them: the device's contract (device/device.h), the
// types of weights that kernels read, and KV in f16, which follows the rule of f32 here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "cuda/contract.h"
#include "cuda/on_device.h"
#include "cuda/weights.h"
#include "device/device.h"
#include "device/gpu.h"
#include "device/vulkan/driver.h"
#include "kernels/cuda/launchers.h"
#include "kernels/gpu/gates.h"
#include "kernels/gpu/heads.h"
#include "kernels/gpu/offer.h"
#include "kernels/kernels.h"
#include "tensor/codec.h"

namespace millrace::kernels::gpu {
namespace {

using test::Array;
using test::normal_floats;
using test::same_bits;

class VulkanDevice : public test::OnDevice {
 protected:
  static std::vector<std::uint32_t> counted(std::size_t n) {
    std::vector<std::uint32_t> numbers(n);
    std::iota(numbers.begin(), numbers.end(), 7u);
    return numbers;
  }
};

TEST(VulkanCalls, AreNamedWhereTheyFail) {
  using device::vulkan::vulkan_status;
  EXPECT_TRUE(vulkan_status(VK_SUCCESS, "vk.vkQueueSubmit(queue)").ok());
  EXPECT_TRUE(vulkan_status(VK_TIMEOUT, "vk.vkWaitSemaphores(device)").ok()) << "no error, as the standard counts them";
  const Status lost = vulkan_status(VK_ERROR_DEVICE_LOST, "driver.vk.vkQueueSubmit(queue, vkNothing)");
  EXPECT_EQ(lost.code(), Code::io_error);
  EXPECT_EQ(lost.message(), "vkQueueSubmit: the device is lost");
  const Status full = vulkan_status(VK_ERROR_OUT_OF_DEVICE_MEMORY, "create(&info)");
  EXPECT_EQ(full.code(), Code::out_of_budget);
  EXPECT_EQ(full.message(), "create: out of device memory");
}

TEST_F(VulkanDevice, ListsItself) {
  const auto gpus = device::gpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status().message();
  ASSERT_FALSE(gpus->empty());
  EXPECT_FALSE(gpus->front().name.empty());
  EXPECT_NE(gpus->front().driver.find("Vulkan 1."), std::string::npos);
}

TEST_F(VulkanDevice, PromisesBits) {
  const auto driver = device::vulkan::Driver::get();
  ASSERT_TRUE(driver.ok());
  EXPECT_TRUE((*driver)->promises_bits) << (*driver)->offer.name;
}

TEST_F(VulkanDevice, IsOneOfAProcess) {
  const auto present = device::present_gpu();
  ASSERT_TRUE(present.ok());
  const Status other = device::use_gpu(*present + 1);
  EXPECT_EQ(other.code(), Code::unsupported);
  EXPECT_NE(other.message().find("one process has one Vulkan device"), std::string::npos) << other.message();
}

TEST_F(VulkanDevice, CopiesAnyBytesThere) {
  for (const std::size_t bytes : {1, 3, 4, 255, 4096, 100'003}) {
    auto memory = device::DeviceBuffer::allocate(bytes + 8);
    ASSERT_TRUE(memory.ok());
    std::vector<std::uint8_t> from(bytes), back(bytes + 8);
    for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::uint8_t>(i * 7 + 1);
    ASSERT_TRUE(device::fill_device(memory->data(), 0xab, bytes + 8, {}).ok());
    ASSERT_TRUE(device::write_device(memory->data() + 3, from.data(), bytes).ok());
    ASSERT_TRUE(device::read_device(back.data(), memory->data(), bytes + 8).ok());
    EXPECT_TRUE(std::equal(from.begin(), from.end(), back.begin() + 3)) << bytes;
    EXPECT_EQ(back[2], 0xab);
    EXPECT_EQ(back[bytes + 3], 0xab);
  }
}

TEST_F(VulkanDevice, StreamsKeepOrderAndWaitForEvents) {
  constexpr std::size_t kNumbers = 1 << 16, kBytes = kNumbers * 4;
  auto pinned = device::PinnedBuffer::allocate(kBytes), result = device::PinnedBuffer::allocate(kBytes);
  auto a = device::DeviceBuffer::allocate(kBytes), b = device::DeviceBuffer::allocate(kBytes);
  auto first = device::Stream::create(), second = device::Stream::create();
  auto copied = device::Event::create(), ended = device::Event::create();
  ASSERT_TRUE(pinned.ok() && result.ok() && a.ok() && b.ok() && first.ok() && second.ok());
  ASSERT_TRUE(copied.ok() && ended.ok());
  EXPECT_TRUE(*device::is_reached(*copied)) << "it was never recorded";
  const auto numbers = counted(kNumbers);
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < kNumbers; ++i)
      reinterpret_cast<std::uint32_t*>(pinned->data())[i] = numbers[i] + static_cast<std::uint32_t>(round);
    ASSERT_TRUE(device::copy_to_device(a->data(), pinned->data(), kBytes, *first).ok());
    ASSERT_TRUE(device::record(*copied, *first).ok());
    ASSERT_TRUE(device::wait_on_device(*second, *copied).ok());
    ASSERT_TRUE(device::record(*ended, *second).ok());  // behind what is waited for, though nothing lies between
    ASSERT_TRUE(device::copy_on_device(b->data(), a->data(), kBytes, *second).ok());
    ASSERT_TRUE(device::copy_to_host(result->data(), b->data(), kBytes, *second).ok());
    ASSERT_TRUE(device::wait(*ended).ok());
    EXPECT_TRUE(*device::is_reached(*copied));
    ASSERT_TRUE(second->synchronise().ok());
    EXPECT_TRUE(*device::is_idle(*second));
    const auto* const got = reinterpret_cast<const std::uint32_t*>(result->data());
    EXPECT_EQ(got[0], 7u + static_cast<unsigned>(round));
    EXPECT_EQ(got[kNumbers - 1], numbers.back() + static_cast<unsigned>(round));
  }
}

TEST_F(VulkanDevice, ARecordedPassRunsAnyNumberOfTimesWithWhatLiesThere) {
  constexpr std::size_t kNumbers = 1000;
  auto pinned = device::PinnedBuffer::allocate(kNumbers * 4), result = device::PinnedBuffer::allocate(kNumbers * 4);
  auto x = device::DeviceBuffer::allocate(kNumbers * 4), y = device::DeviceBuffer::allocate(kNumbers * 4);
  auto stream = device::Stream::create();
  ASSERT_TRUE(pinned.ok() && result.ok() && x.ok() && y.ok() && stream.ok());
  auto* const in = reinterpret_cast<float*>(pinned->data());
  const auto* const out = reinterpret_cast<const float*>(result->data());
  const std::vector<float> ones(kNumbers, 1);
  ASSERT_TRUE(device::write_device(y->data(), ones.data(), kNumbers * 4).ok());
  std::fill_n(in, kNumbers, 0.0f);
  const auto before = device::device_counters();
  ASSERT_TRUE(device::RecordedPass::begin(*stream).ok());
  ASSERT_TRUE(device::copy_to_device(x->data(), in, kNumbers * 4, *stream).ok());
  ASSERT_TRUE(add(reinterpret_cast<float*>(x->data()), reinterpret_cast<float*>(y->data()), kNumbers, *stream).ok());
  ASSERT_TRUE(device::copy_to_host(result->data(), x->data(), kNumbers * 4, *stream).ok());
  auto pass = device::RecordedPass::end(*stream);
  ASSERT_TRUE(pass.ok()) << pass.status().message();
  EXPECT_EQ(device::device_counters().kernel_launches, before.kernel_launches) << "recorded, not done";
  for (int round = 0; round < 5; ++round) {
    std::fill_n(in, kNumbers, static_cast<float>(round));
    ASSERT_TRUE(pass->launch(*stream).ok());
    ASSERT_TRUE(stream->synchronise().ok());
    EXPECT_EQ(out[0], static_cast<float>(round + 1));
    EXPECT_EQ(out[kNumbers - 1], static_cast<float>(round + 1));
  }
  EXPECT_EQ(device::device_counters().graph_launches, before.graph_launches + 5);
}

TEST_F(VulkanDevice, KernelsReadHostMemoryByItsAddress) {
  auto pinned = device::PinnedBuffer::allocate(4096);
  ASSERT_TRUE(pinned.ok());
  const auto seen = device::seen_by_gpu(pinned->data() + 256);
  if (!seen.ok()) GTEST_SKIP() << seen.status().message();
  const std::vector<float> ones(16, 1);
  std::fill_n(reinterpret_cast<float*>(pinned->data() + 256), 16, 2.5f);
  const Array<float> sum(ones);
  ASSERT_TRUE(add(sum.get(), reinterpret_cast<const float*>(*seen), 16, {}).ok());
  EXPECT_EQ(sum.host(), std::vector<float>(16, 3.5f));
}

TEST_F(VulkanDevice, MoreThanThereIsIsRefused) {
  const auto vram = device::vram_state();
  ASSERT_TRUE(vram.ok());
  const auto memory = device::DeviceBuffer::allocate(vram->total_bytes + (std::size_t{1} << 40));
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), Code::out_of_budget) << memory.status().message();
}

// --- Kernels ---

class VulkanKernels : public test::OnDevice {
 protected:
  std::mt19937 random_{23};
};

std::vector<DType> read_dtypes() {
  std::vector<DType> dtypes;
  for (const DTypeInfo& one : all_dtypes())
    if (one.computable && offer().reads(one.dtype)) dtypes.push_back(one.dtype);
  return dtypes;
}

TEST_F(VulkanKernels, EmbedDecodesAsTheCodec) {
  for (const DType dtype : read_dtypes()) {
    SCOPED_TRACE(std::string(info(dtype).name));
    const std::int64_t block = info(dtype).block_elements, cols = block == 1 ? 333 : 3 * block, vocab = 37;
    test::Random random(5);
    std::vector<std::byte> table;
    if (block == 1) {
      table.resize(static_cast<std::size_t>(row_bytes(dtype, cols) * vocab));
      for (std::byte& byte : table) byte = static_cast<std::byte>(random.bits());
    } else {
      table = test::random_weights(dtype, static_cast<int>(vocab), static_cast<int>(cols), random);
    }
    const std::vector<std::int32_t> tokens = {36, 0, 5, 5, 17};
    std::vector<float> want(tokens.size() * static_cast<std::size_t>(cols));
    for (std::size_t r = 0; r < tokens.size(); ++r)
      decode_row(dtype, table.data() + row_bytes(dtype, cols) * tokens[r], cols,
                 want.data() + r * static_cast<std::size_t>(cols));
    const Array<std::byte> on_device(table);
    const test::Entry entry(on_device.get());
    const Array<std::int32_t> ids(tokens);
    const Array<float> out(want.size());
    ASSERT_TRUE(embed({entry.get(), dtype, static_cast<std::int32_t>(vocab)}, ids.get(), 5,
                      static_cast<std::int32_t>(cols), out.get(), {})
                    .ok());
    EXPECT_TRUE(same_bits(out.host(), want));
  }
}

/// Activations in the forms that products read, on the device and on the host.
struct Input {
  Input(int rows, int cols, std::mt19937& random)
      : x(normal_floats(static_cast<std::size_t>(rows * cols), random)), q8_memory(q8_bytes(rows, cols)), x_at(x) {
    std::vector<std::byte> memory(static_cast<std::size_t>(kernels::q8_bytes(rows, cols)));
    const Q8Rows host = q8_rows_at(memory.data(), rows, cols);
    kernels::table(device::Isa::plain).quantize_q8(x.data(), cols, rows, cols, host);
    q.assign(host.q, host.q + rows * cols);
    d.assign(host.d, host.d + rows * cols / 32);
    EXPECT_TRUE(quantize_q8(x_at.get(), cols, rows, cols, view(rows, cols), {}).ok());
  }
  Q8 view(int rows, int cols) const { return q8_at(q8_memory.get(), rows, cols); }

  std::vector<float> x;
  std::vector<std::int8_t> q;
  std::vector<float> d;
  Array<std::byte> q8_memory;
  Array<float> x_at;
};

TEST_F(VulkanKernels, ProductsGiveTheContractsBits) {
  struct Shape {
    int rows, blocks, x_rows;
  };
  for (const DType dtype : read_dtypes()) {
    // Of 8 and 24 blocks: whole segments of 256 elements of every type.
    for (const Shape& shape : {Shape{1, 1, 1}, Shape{33, 3, 1}, Shape{65, 11, 4}, Shape{31, 2, 9}, Shape{75, 8, 1},
                               Shape{45, 24, 1}, Shape{70, 8, 37}}) {
      const int block = static_cast<int>(info(dtype).block_elements), cols = shape.blocks * std::max(block, 32);
      SCOPED_TRACE(::testing::Message() << info(dtype).name << ", " << shape.rows << " rows of " << cols << ", "
                                        << shape.x_rows << " of x");
      test::Random random(static_cast<unsigned>(shape.rows));
      const std::vector<std::byte> weights = [&] {
        if (block > 1) return test::random_weights(dtype, shape.rows, cols, random);
        std::vector<std::byte> floats;
        for (int i = 0; i < shape.rows * cols; ++i) {
          const float w = random.normal();
          const std::uint16_t half = dtype == DType::f16 ? f32_to_f16(w) : f32_to_bf16(w);
          const auto* const from =
              dtype == DType::f32 ? reinterpret_cast<const std::byte*>(&w) : reinterpret_cast<const std::byte*>(&half);
          floats.insert(floats.end(), from, from + (dtype == DType::f32 ? 4 : 2));
        }
        return floats;
      }();
      const Input input(shape.x_rows, cols, random_);
      const auto count = static_cast<std::size_t>(shape.rows);
      const auto bias = normal_floats(count, random_), residual = normal_floats(count * input.x.size() / cols, random_);
      std::vector<float> stored, added;
      for (int r = 0; r < shape.x_rows; ++r)
        for (int n = 0; n < shape.rows; ++n) {
          const float dot =
              test::contract_dot(dtype, weights.data() + row_bytes(dtype, cols) * n, cols, input.x.data() + r * cols,
                                 input.q.data() + r * cols, input.d.data() + r * (cols / 32));
          stored.push_back(dot + bias[static_cast<std::size_t>(n)]);
          added.push_back(residual[stored.size() - 1] + dot);
        }
      const Array<std::byte> weights_at(weights);
      const Array<float> bias_at(bias), y(stored.size()), sum(residual);
      const test::Entry entry(weights_at.get()), bias_entry(bias_at.at_bytes());
      MatmulCall call;
      call.count = 1;
      call.cols = cols;
      call.x_rows = shape.x_rows;
      call.x = input.x_at.get();
      call.x_stride = cols;
      call.x_q8 = input.view(shape.x_rows, cols);
      call.products[0] = {{entry.get(), dtype, shape.rows}, bias_entry.get(), y.get(), shape.rows};
      ASSERT_TRUE(matmul(call, {}).ok());
      EXPECT_TRUE(same_bits(y.host(), stored));
      call.effect = Effect::add;
      call.products[0] = {{entry.get(), dtype, shape.rows}, nullptr, sum.get(), shape.rows};
      ASSERT_TRUE(matmul(call, {}).ok());
      EXPECT_TRUE(same_bits(sum.host(), added));
    }
  }
}

TEST_F(VulkanKernels, GatesQuantizeWhatTheyStore) {
  const int rows = 96, cols = 512;
  for (const DType dtype : {DType::q4_k, DType::q6_k, DType::q8_0, DType::f16}) {
    for (const int x_rows : {1, 5, 41}) {
      const Activation activation = x_rows == 5 ? Activation::gelu : Activation::silu;
      SCOPED_TRACE(std::string(info(dtype).name) + ", rows of x: " + std::to_string(x_rows));
      test::Random random(3);
      std::vector<std::byte> weights[2];
      std::vector<float> values[2];
      const Input input(x_rows, cols, random_);
      for (int p = 0; p < 2; ++p) {
        if (dtype == DType::f16) {
          for (int i = 0; i < rows * cols; ++i) {
            const std::uint16_t half = f32_to_f16(random.normal() / 16);
            weights[p].push_back(static_cast<std::byte>(half & 255));
            weights[p].push_back(static_cast<std::byte>(half >> 8));
          }
        } else {
          weights[p] = test::random_weights(dtype, rows, cols, random);
        }
        for (int r = 0; r < x_rows; ++r)
          for (int n = 0; n < rows; ++n)
            values[p].push_back(test::contract_dot(dtype, weights[p].data() + row_bytes(dtype, cols) * n, cols,
                                                   input.x.data() + r * cols, input.q.data() + r * cols,
                                                   input.d.data() + r * (cols / 32)));
      }
      const kernels::Table& cpu = kernels::table(device::Isa::plain);
      cpu.gate_mul(activation, 0, values[0].data(), values[1].data(), static_cast<std::int64_t>(values[0].size()));
      std::vector<std::byte> memory(static_cast<std::size_t>(kernels::q8_bytes(x_rows, rows)));
      const Q8Rows want = q8_rows_at(memory.data(), x_rows, rows);
      cpu.quantize_q8(values[0].data(), rows, x_rows, rows, want);

      const Array<std::byte> gate(weights[0]), up(weights[1]), q8(q8_bytes(x_rows, rows));
      const Array<float> y(values[0].size());
      const test::Entry gate_entry(gate.get()), up_entry(up.get());
      MatmulCall call;
      call.count = 2;
      call.effect = Effect::gated;
      call.activation = activation;
      call.cols = cols;
      call.x_rows = x_rows;
      call.x = input.x_at.get();
      call.x_stride = cols;
      call.x_q8 = input.view(x_rows, cols);
      call.products[0] = {{gate_entry.get(), dtype, rows}, nullptr, y.get(), rows};
      call.products[1] = {{up_entry.get(), dtype, rows}, nullptr, nullptr, rows};
      call.y_q8 = q8_at(q8.get(), x_rows, rows);
      ASSERT_TRUE(matmul(call, {}).ok());
      EXPECT_TRUE(same_bits(y.host(), values[0]));
      const std::vector<std::byte> got = q8.host();
      EXPECT_EQ(std::memcmp(got.data(), want.q, static_cast<std::size_t>(x_rows * rows)), 0);
      for (int b = 0; b < x_rows * rows / 32; ++b) {
        Q8Scale scale;
        std::memcpy(&scale, got.data() + (x_rows * rows + 255) / 256 * 256 + b * static_cast<int>(sizeof scale),
                    sizeof scale);
        EXPECT_TRUE(test::same(scale.d, want.d[b])) << b;
      }
    }
  }
}

TEST_F(VulkanKernels, KvInF16FollowsTheRuleOfF32WholeAndInChunks) {
  constexpr int kHeads = 4, kHeadDim = 64, kTokens = 300, kBlockTokens = 64, kElements = 2 * kBlockTokens * kHeadDim;
  constexpr int kBlocks = 5, kMostPositions = 512;
  const auto q = normal_floats(2 * kHeads * kHeadDim, random_);
  const std::vector<std::int32_t> sequence = {0, 0}, position = {kTokens - 1, 12};
  std::vector<float> wide(kBlocks * kElements);  // blocks: keys, then values, of one head
  std::vector<std::uint16_t> halves;
  for (float& x : wide) {
    halves.push_back(f32_to_f16(2 * std::normal_distribution<float>()(random_)));
    x = f16_to_f32(halves.back());
  }
  const Array<float> q_at(q), wide_at(wide);
  const Array<std::uint16_t> halves_at(halves);
  const Array<std::int32_t> sequence_at(sequence), position_at(position);
  std::vector<float> want;
  for (const DType dtype : {DType::f32, DType::f16}) {
    const bool half = dtype == DType::f16;
    const std::size_t bytes = half ? 2 : 4;
    const std::byte* const blocks = half ? halves_at.at_bytes() : wide_at.at_bytes();
    std::vector<const std::byte*> places;
    for (std::size_t i = 0; i < kBlocks; ++i) places.push_back(blocks + i * kElements * bytes);
    const Array<const std::byte*> table(places);
    const Array<std::byte> workspace(attention_workspace_bytes(2, kHeads, kHeadDim, kMostPositions));
    AttentionCall call;
    call.rows = {2, nullptr, sequence_at.get(), position_at.get()};
    call.kv.blocks = {table.get(), 0, static_cast<std::int64_t>(kElements / 2 * bytes),
                      static_cast<std::int64_t>(kElements / 2 * bytes)};
    call.kv.max_blocks = kBlocks;
    call.kv.dtype = dtype;
    call.kv.kv_heads = 1;
    call.kv.head_dim = kHeadDim;
    call.q = q_at.get();
    call.heads = kHeads;
    call.scale = 0.125f;
    call.max_position = kMostPositions;
    for (std::byte* const parts : {static_cast<std::byte*>(nullptr), workspace.get()}) {  // null: a workgroup a head
      const Array<float> out(q.size());
      call.out = out.get();
      call.workspace = parts;
      ASSERT_TRUE(attention(call, {}).ok());
      if (want.empty()) want = out.host();
      EXPECT_TRUE(same_bits(out.host(), want));
    }
  }
}

TEST_F(VulkanKernels, ExpertsTakeTheirEntries) {
  constexpr int kExperts = 5, kRowsOfEach = 64, kCols = 512, kTopK = 2, kInputs = 7, kEntries = kInputs * kTopK;
  constexpr int kBiasStride = kRowsOfEach + 6;
  for (const DType dtype : {DType::q4_k, DType::q6_k, DType::q8_0}) {
    SCOPED_TRACE(std::string(info(dtype).name));
    test::Random random(11);
    const Input input(kInputs, kCols, random_);
    std::vector<std::int32_t> chosen, order(kEntries), first(kExperts + 1);
    for (int e = 0; e < kEntries; ++e)
      chosen.push_back(e < 3 ? 4 : random.below(kExperts - 1));  // none has the third's
    std::replace(chosen.begin(), chosen.end(), 2, 0);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return chosen[static_cast<std::size_t>(a)] < chosen[static_cast<std::size_t>(b)];
    });
    for (const std::int32_t expert : chosen)
      for (int e = expert + 1; e <= kExperts; ++e) ++first[static_cast<std::size_t>(e)];
    // Gate and up of each expert, two entries of the table a expert.
    std::vector<std::vector<std::byte>> weights;
    for (int i = 0; i < 2 * kExperts; ++i) weights.push_back(test::random_weights(dtype, kRowsOfEach, kCols, random));
    std::vector<float> values[2];
    for (int p = 0; p < 2; ++p)
      for (int e = 0; e < kEntries; ++e)
        for (int n = 0; n < kRowsOfEach; ++n) {
          const int x = e / kTopK;
          const auto& matrix = weights[static_cast<std::size_t>(2 * chosen[static_cast<std::size_t>(e)] + p)];
          values[p].push_back(test::contract_dot(dtype, matrix.data() + row_bytes(dtype, kCols) * n, kCols,
                                                 input.x.data() + x * kCols, input.q.data() + x * kCols,
                                                 input.d.data() + x * (kCols / 32)));
        }
    const auto biases = normal_floats(2 * kExperts * kBiasStride, random_);  // of gates, and then of ups

    std::vector<std::unique_ptr<Array<std::byte>>> on_device;
    std::vector<const std::byte*> table;
    for (const auto& matrix : weights) {
      on_device.push_back(std::make_unique<Array<std::byte>>(matrix));
      table.push_back(on_device.back()->get());
    }
    const Array<const std::byte*> table_at(table);
    const Array<float> biases_at(biases);
    const test::Entry bias(biases_at.at_bytes()), up_bias(biases_at.at_bytes() + 4 * kExperts * kBiasStride);
    const Array<std::int32_t> chosen_at(chosen), sorted(kEntries), expert_first(kExperts + 1);
    ASSERT_TRUE(sort_entries(chosen_at.get(), kEntries, kExperts, sorted.get(), expert_first.get(), {}).ok());
    EXPECT_EQ(sorted.host(), order);
    EXPECT_EQ(expert_first.host(), first);
    struct Form {
      bool gated, in_order, biased;
    };
    for (const Form& form : {Form{false, false, false}, Form{false, true, false}, Form{true, false, false},
                             Form{true, true, false}, Form{false, true, true}, Form{true, false, true}}) {
      SCOPED_TRACE(::testing::Message() << "gated " << form.gated << ", sorted " << form.in_order << ", biased "
                                        << form.biased);
      const Activation activation = form.biased ? Activation::clamped : Activation::silu;  // as gpt-oss has it
      std::vector<float> want = values[0], up = values[1];
      for (std::size_t i = 0; form.biased && i < want.size(); ++i) {
        const auto expert = static_cast<std::size_t>(chosen[i / kRowsOfEach]);
        const std::size_t at = expert * kBiasStride + i % kRowsOfEach;
        want[i] += biases[at];
        up[i] += biases[kExperts * kBiasStride + at];
      }
      if (form.gated) {
        kernels::table(device::Isa::plain)
            .gate_mul(activation, 0, want.data(), up.data(), static_cast<std::int64_t>(want.size()));
      }
      const Array<float> y(want.size());
      ExpertCall call;
      call.weight = table_at.get();
      call.up = table_at.get() + 1;
      call.address_stride = 2;
      if (form.biased) {
        call.bias = bias.get();
        call.up_bias = up_bias.get();
        call.bias_stride = kBiasStride;
      }
      call.dtype = call.up_dtype = dtype;
      call.effect = form.gated ? Effect::gated : Effect::store;
      call.activation = activation;
      call.rows = kRowsOfEach;
      call.cols = kCols;
      call.entries = kEntries;
      call.experts = kExperts;
      call.chosen = chosen_at.get();
      call.sorted = sorted.get();
      call.expert_first = expert_first.get();
      call.entries_per_x = kTopK;
      call.x_q8 = input.view(kInputs, kCols);
      call.y = y.get();
      ASSERT_TRUE((form.in_order ? matmul_experts(call, {}) : matvec_experts(call, {})).ok());
      EXPECT_TRUE(same_bits(y.host(), want));
    }
  }
}

/// Floats, and their int8 form, on the device.
struct BothForms {
  BothForms(std::int32_t rows, std::int32_t cols)
      : rows(rows), cols(cols), floats(static_cast<std::size_t>(rows * cols)), q8(q8_bytes(rows, cols)) {}
  Q8 view() const { return q8_at(q8.get(), rows, cols); }

  std::int32_t rows, cols;
  Array<float> floats;
  Array<std::byte> q8;
};

TEST_F(VulkanKernels, GatesLeaveInt8BesideFloatsAndAlone) {
  for (const std::int32_t cols : {32, 96, 4096}) {
    for (const std::int32_t rows : {1, 5, 77}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols);
      const auto n = static_cast<std::size_t>(rows * cols);
      const auto x = normal_floats(n, random_, 3);
      const Array<float> x_at(x), gate(normal_floats(n, random_, 4));
      BothForms want(rows, cols);
      const BothForms got(rows, cols), alone(rows, cols);
      want.floats.put(x);
      ASSERT_TRUE(sigmoid_gate(want.floats.get(), gate.get(), rows * cols, {}).ok());
      ASSERT_TRUE(quantize_q8(want.floats.get(), cols, rows, cols, want.view(), {}).ok());
      SigmoidGateCall call;
      call.x = x_at.get();
      call.gate = gate.get();
      call.blocks = rows * cols / 32;
      call.out = got.floats.get();
      call.out_q8 = got.view();
      ASSERT_TRUE(sigmoid_gate(call, {}).ok());
      EXPECT_TRUE(same_bits(got.floats.host(), want.floats.host()));
      EXPECT_TRUE(got.q8.host() == want.q8.host());
      call.out = nullptr;
      call.out_q8 = alone.view();
      ASSERT_TRUE(sigmoid_gate(call, {}).ok());
      EXPECT_TRUE(alone.q8.host() == want.q8.host());
      EXPECT_TRUE(same_bits(x_at.host(), x));
    }
  }
}

TEST_F(VulkanKernels, AGatedNormIsTheNormAndThenTheGateInBothForms) {
  for (const std::int32_t head_dim : {32, 96, 128, 160, 256, 288, 512}) {  // of 32, 64 and 128 threads a head
    for (const std::int32_t heads : {1, 3}) {
      const std::int32_t rows = 19, cols = heads * head_dim;
      const Activation activation = heads == 3 ? Activation::gelu : Activation::silu;
      SCOPED_TRACE(::testing::Message() << heads << " heads of " << head_dim);
      const auto n = static_cast<std::size_t>(rows * cols);
      auto x = normal_floats(n, random_, 3);
      std::fill_n(x.begin(), head_dim, 0.0f);
      const auto gate = normal_floats(n, random_, 4);
      const Array<float> x_at(x), normal(x), gate_at(gate),
          weight(normal_floats(static_cast<std::size_t>(head_dim), random_));
      const test::Entry entry(weight.at_bytes());
      BothForms want(rows, cols);
      const BothForms got(rows, cols);
      ASSERT_TRUE(
          rms_norm(normal.get(), nullptr, entry.get(), rows * heads, head_dim, 1e-6f, normal.get(), {}, {}).ok());
      want.floats.put(gate);
      ASSERT_TRUE(gate_rows(activation, 0, want.floats.get(), normal.get(), cols, rows, cols, {}).ok());
      ASSERT_TRUE(quantize_q8(want.floats.get(), cols, rows, cols, want.view(), {}).ok());
      GatedNormCall call;
      call.x = x_at.get();
      call.gate = gate_at.get();
      call.weight = entry.get();
      call.rows = rows;
      call.heads = heads;
      call.head_dim = head_dim;
      call.eps = 1e-6f;
      call.activation = activation;
      call.out = got.floats.get();
      call.out_q8 = got.view();
      ASSERT_TRUE(gated_norm(call, {}).ok());
      EXPECT_TRUE(same_bits(got.floats.host(), want.floats.host()));
      EXPECT_TRUE(got.q8.host() == want.q8.host());
      EXPECT_TRUE(same_bits(x_at.host(), x));
      call.out = gate_at.get();  // in place, and in floats alone
      call.out_q8 = {};
      ASSERT_TRUE(gated_norm(call, {}).ok());
      EXPECT_TRUE(same_bits(gate_at.host(), want.floats.host()));
    }
  }
}

TEST_F(VulkanKernels, TemperaturesAreTheProcessors) {
  // Every quotient of position and period up to 4,096, and some larger ones.
  std::vector<std::int32_t> positions;
  for (int i = 0; i < 4096; ++i) positions.push_back(8 * i + i % 8);
  for (int i = 1; i < 100; ++i) positions.push_back((1 << 28) / i);
  constexpr std::int32_t kCols = 70;
  const auto rows = static_cast<std::int32_t>(positions.size());
  const auto x = normal_floats(positions.size() * kCols, random_);
  const Array<std::int32_t> positions_at(positions);
  for (const float scale : {0.1f, 0.5f, -1e-10f}) {
    const Array<float> x_at(x);
    ASSERT_TRUE(temper(x_at.get(), positions_at.get(), scale, 8, 0, rows, kCols, {}).ok());
    std::vector<float> want = x;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double periods = positions[i / kCols] / 8;  // NOLINT(bugprone-integer-division): whole ones
      want[i] *= static_cast<float>(1 + scale * std::log(periods + 1));
    }
    EXPECT_TRUE(same_bits(x_at.host(), want)) << scale;
  }
}

}  // namespace
}  // namespace millrace::kernels::gpu

// The test that a GPU's kernels pass before a model runs on it, and what runs where they do not.
#include "exec/gpu/self_test.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "cuda_engine/on_gpu.h"
#include "engine/reference.h"
#include "kernels/gpu/gates.h"
#include "kernels/gpu/offer.h"
#include "kernels/gpu/plainer.h"
#include "modelfile/quantize.h"
#ifdef MILLRACE_SIMULATED
#include "simulated/device.h"
#endif

namespace millrace::engine {
namespace {

using namespace test;
using kernels::gpu::Family;

constexpr DType kQuantized[] = {DType::q4_0,   DType::q4_1,    DType::q5_0,  DType::q5_1,    DType::q8_0,
                                DType::q2_k,   DType::q3_k,    DType::q4_k,  DType::q5_k,    DType::q6_k,
                                DType::iq4_nl, DType::iq4_xs,  DType::mxfp4, DType::iq2_xxs, DType::iq2_xs,
                                DType::iq2_s,  DType::iq3_xxs, DType::iq3_s, DType::iq1_s,   DType::iq1_m,
                                DType::tq1_0,  DType::tq2_0,   DType::nvfp4, DType::q1_0,    DType::q2_0};

class SelfTest : public OnGpu {
 protected:
  void TearDown() override {
    exec::forget_self_tests();
#ifdef MILLRACE_SIMULATED
    simulated::spoil_products_from(0);
#endif
  }

  static EngineOptions dense(modelfile::QuantizeType type) {
    const std::string path = ::testing::TempDir() + "self-test-" + std::to_string(::getpid()) + ".gguf";
    std::filesystem::remove(path);
    EXPECT_TRUE(modelfile::quantize(draft_path(), path, {.type = type}).ok());
    EngineOptions options;
    options.model.path = path;
    options.device.choice = DeviceChoice::cuda;
    return options;
  }
};

TEST_F(SelfTest, PassesWithEveryFormat) {
  const auto gpu = device::gpu(0);
  ASSERT_TRUE(gpu.ok());
  exec::SelfTestOf of;
  for (const DType dtype : kQuantized)
    if (kernels::gpu::offer().reads(dtype)) of.weights.push_back(dtype);
  for (const DType kv : {DType::f16, DType::f32, DType::q8_0}) {
    of.kv_dtype = kv;
    of.heads.clear();
    for (const std::int64_t head_dim : kernels::gpu::kTileHeadDims)
      if (gpu->block_shared_bytes >= kernels::gpu::attention_shared_bytes(head_dim, kv) &&
          head_dim % info(kv).block_elements == 0)
        for (const std::int64_t group : {1, 3, 8}) of.heads.push_back({head_dim, group});
    const auto replaced = exec::self_test(of, *gpu);
    ASSERT_TRUE(replaced.ok()) << replaced.status().message();
    EXPECT_TRUE(replaced->empty()) << replaced->front();
    of.weights.clear();
  }
}

TEST_F(SelfTest, PlainerProductsHaveTheSameBits) {
  EngineOptions options = dense(modelfile::QuantizeType::q4_k_m);
  // Prompts' products are of another rounding, so that only generated tokens' rows are compared.
  kernels::gpu::do_without(Family::prompt_products);
  const std::vector<float> want = logits_of(options, 150, 3);
  kernels::gpu::do_without(Family::product_tiles);
  expect_same_bits(logits_of(options, 150, 3), want);
}

TEST_F(SelfTest, PlainerAttentionIsNear) {
  EngineOptions options = dense(modelfile::QuantizeType::q8_0);
  const std::vector<float> want = logits_of(options, 150, 3);
  kernels::gpu::do_without(Family::attention_tiles);
  const std::vector<float> got = logits_of(options, 150, 3);
  ASSERT_EQ(got.size(), want.size());
  double off = 0, all = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    off += std::pow(double{got[i]} - want[i], 2), all += std::pow(double{want[i]}, 2);
  EXPECT_LE(std::sqrt(off / all), 2e-3);
}

#ifdef MILLRACE_SIMULATED
TEST_F(SelfTest, ReplacesProductsThatAreWrong) {
  EngineOptions options = dense(modelfile::QuantizeType::q5_0);  // which no other test here tries
  simulated::spoil_products_from(64);
  const std::vector<float> got = logits_of(options, 150, 3);
  EXPECT_TRUE(kernels::gpu::does_without(Family::product_tiles));
  exec::forget_self_tests();
  simulated::spoil_products_from(0);
  expect_same_bits(got, logits_of(options, 150, 3));
}

TEST_F(SelfTest, RefusesADeviceWhoseExpertsWouldBeWrong) {
  const auto gpu = device::gpu(0);
  ASSERT_TRUE(gpu.ok());
  exec::SelfTestOf of;
  of.weights = {DType::iq4_nl};
  of.experts = true;
  simulated::spoil_products_from(64);
  const auto replaced = exec::self_test(of, *gpu);
  ASSERT_FALSE(replaced.ok());
  EXPECT_EQ(replaced.status().code(), Code::unsupported);
  for (const char* word : {"experts", "--device cpu", "Simulated"})
    EXPECT_NE(replaced.status().message().find(word), std::string::npos) << replaced.status().message();
}
#endif

}  // namespace
}  // namespace millrace::engine

// Layers over several ranks that each have a GPU, the ranks being threads: the bits of one GPU. Where a machine has one
// GPU alone the ranks share it.
#include <gtest/gtest.h>

#include "cuda_engine/on_gpu.h"
#include "engine/rank_threads.h"
#include "engine/support.h"

namespace millrace::engine {
namespace {

using namespace test;

class Ranks : public OnGpu {
 protected:
  static EngineOptions on_gpu(const std::string& path) {
    EngineOptions options;
    options.model.path = path;
    options.device.choice = DeviceChoice::cuda;
    options.memory.vram_bytes = 3'000'000'000;
    options.demand.context_tokens = 512;
    options.demand.max_sequences = 2;
    return options;
  }

  static std::vector<float> logits_of(Engine& engine) {
    std::vector<std::vector<float>> logits(2);
    std::vector<Engine::Id> ids;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      Request request = greedy(real_text(engine, i == 0 ? 150 : 20, 500 * i), 6);
      keep_logits(request, logits[i]);
      const auto id = engine.submit(std::move(request));
      EXPECT_TRUE(id.ok()) << id.status().message();
      if (id.ok()) ids.push_back(*id);
    }
    while (engine.step()) {
    }
    std::vector<float> all;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Result result = engine.take(ids[i]);
      EXPECT_EQ(result.finish, Finish::length) << result.status.message();
      all.insert(all.end(), logits[i].begin(), logits[i].end());
    }
    return all;
  }

  /// With so many ranks.
  static std::vector<float> over(std::size_t ranks, const std::string& path, std::int64_t batch) {
    RankThreads threads(std::vector<EngineOptions>(ranks - 1, on_gpu(path)));
    EngineOptions options = on_gpu(path);
    options.demand.batch_tokens = batch;
    const auto engine = threads.create(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? logits_of(**engine) : std::vector<float>();
  }
};

TEST_F(Ranks, TheBitsOfOneGpu) {
  for (const std::string& path : {moe_path(), draft_path()}) {
    for (const std::int64_t batch : {0, 64}) {
      SCOPED_TRACE(::testing::Message() << path << ", " << batch << " rows a pass");
      EngineOptions options = on_gpu(path);
      options.demand.batch_tokens = batch;
      const auto alone = make(options);
      ASSERT_NE(alone, nullptr);
      const std::vector<float> expected = logits_of(*alone);
      for (const std::size_t ranks : {2u, 3u}) expect_same_bits(over(ranks, path, batch), expected);
    }
  }
}

TEST_F(Ranks, AGpuBesideAProcessorIsRefusedInWords) {
  RankThreads threads({roomy(moe_path())});
  const auto engine = threads.create(on_gpu(moe_path()));
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("give all a GPU or none"), std::string::npos) << engine.status().message();
}

}  // namespace
}  // namespace millrace::engine

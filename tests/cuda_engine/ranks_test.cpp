// Layers over several ranks that each have a GPU, the ranks being threads: the bits of one GPU. Where a machine has one
// GPU alone the ranks share it.
#include <gtest/gtest.h>

#include <thread>

#include "cuda_engine/on_gpu.h"
#include "engine/cluster.h"
#include "engine/support.h"
#include "link/local_link.h"
#include "link/message.h"

namespace millrace::engine {
namespace {

using namespace test;

class Ranks : public OnGpu {
 protected:
  static EngineOptions on_gpu(const std::string& path) {
    EngineOptions options;
    options.model_path = path;
    options.device = DeviceChoice::cuda;
    options.vram_bytes = 3'000'000'000;
    options.context_tokens = 512;
    options.max_sequences = 2;
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
  static std::vector<float> over(int ranks, const std::string& path, std::int64_t batch) {
    const auto links = link::make_local_links(ranks);
    std::vector<std::thread> others;
    for (int rank = 1; rank < ranks; ++rank)
      others.emplace_back([&links, rank, path] {
        const Status status = follow(*links[static_cast<std::size_t>(rank)], on_gpu(path));
        EXPECT_TRUE(status.ok()) << status.message();
      });
    std::vector<float> logits;
    {
      Cluster cluster(*links[0]);
      EngineOptions options = on_gpu(path);
      options.batch_tokens = batch;
      options.cluster = &cluster;
      auto engine = Engine::create(options);
      EXPECT_TRUE(engine.ok()) << engine.status().message();
      if (engine.ok()) logits = logits_of(**engine);
    }
    std::vector<std::byte> message;
    const link::Writer end(message, link::MessageKind::end);
    for (int rank = 1; rank < ranks; ++rank) EXPECT_TRUE(links[0]->send(rank, message).ok());
    for (std::thread& other : others) other.join();
    return logits;
  }
};

TEST_F(Ranks, TheBitsOfOneGpu) {
  for (const std::string& path : {moe_path(), draft_path()}) {
    for (const std::int64_t batch : {0, 64}) {
      SCOPED_TRACE(::testing::Message() << path << ", " << batch << " rows a pass");
      EngineOptions options = on_gpu(path);
      options.batch_tokens = batch;
      const auto alone = make(options);
      ASSERT_NE(alone, nullptr);
      const std::vector<float> expected = logits_of(*alone);
      for (const int ranks : {2, 3}) expect_same_bits(over(ranks, path, batch), expected);
    }
  }
}

TEST_F(Ranks, AGpuBesideAProcessorIsRefusedInWords) {
  const auto links = link::make_local_links(2);
  std::thread other([&links] {
    const Status status = follow(*links[1], roomy(moe_path()));
    EXPECT_TRUE(status.ok()) << status.message();
  });
  {
    Cluster cluster(*links[0]);
    EngineOptions options = on_gpu(moe_path());
    options.cluster = &cluster;
    const auto engine = Engine::create(options);
    ASSERT_FALSE(engine.ok());
    EXPECT_NE(engine.status().message().find("give all a GPU or none"), std::string::npos) << engine.status().message();
  }
  std::vector<std::byte> message;
  const link::Writer end(message, link::MessageKind::end);
  EXPECT_TRUE(links[0]->send(1, message).ok());
  other.join();
}

}  // namespace
}  // namespace millrace::engine

// A table of n-grams (Qwen3.8-Flash-Next): its rows come from the disk, each once while it is kept, in whatever memory
// and by whatever backend; and KV that its attention cannot gather is refused.
#include <gtest/gtest.h>

#include "engine/states.h"

namespace millrace::engine {
namespace {

using namespace test;

EngineOptions ngram_options(std::int64_t batch = 64) { return options_of("qwen4exp", batch, false); }

TEST(NgramRows, StayInACache) {
  const auto engine = make(ngram_options());
  ASSERT_NE(engine, nullptr);
  const std::vector<float> first = logits_of(*engine, some_tokens(100));
  const residency::StoreCounters before = engine->store_counters();
  EXPECT_GT(before.row_misses, 0u);
  EXPECT_LE(before.row_misses, 350u) << "the table has 340 rows, and hardly one is read twice";
  EXPECT_TRUE(logits_of(*engine, some_tokens(100)) == first);
  EXPECT_LE(engine->store_counters().row_misses, before.row_misses + 10);
  EXPECT_GT(engine->store_counters().row_hits, before.row_hits);
}

TEST(NgramRows, AreTheSameByEveryBackend) {
  std::vector<float> expected;
  for (const storage::BackendKind kind : {storage::BackendKind::pread_buffered, storage::BackendKind::mmap}) {
    EngineOptions options = ngram_options();
    options.storage.backend = kind;
    const auto engine = make(options);
    ASSERT_NE(engine, nullptr);
    const std::vector<float> logits = logits_of(*engine, some_tokens(100));
    if (expected.empty()) expected = logits;
    EXPECT_TRUE(logits == expected);
  }
}

TEST(NgramRows, KvInFewBitsIsRefusedBesideChosenTokens) {
  for (const DType dtype : {DType::q3_k, DType::q2_0}) {
    EngineOptions options = ngram_options();
    options.kv.dtype = dtype;
    const auto engine = Engine::create(options);
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), Code::unsupported);
    EXPECT_NE(engine.status().message().find("use --kv"), std::string::npos) << engine.status().message();
  }
}

}  // namespace
}  // namespace millrace::engine

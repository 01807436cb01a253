// Compressed attention: that chunks, batches, beginnings in common, sessions that go back and the prompt cache never
// change a bit, where rows are completed in another pass than they were begun, and made anew. DeepSeek V4's checkpoint:
// a window of 16 tokens, 8 of the rows of 4 tokens, all rows of 16.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/drafters.h"
#include "engine/own_path.h"
#include "engine/support.h"
#include "fresh_folder.h"

namespace millrace::engine {
namespace {

using test::drain;
using test::greedy;
using test::keep_logits;
using test::make;
using test::own_path;
using text::TokenId;

constexpr std::size_t kVocab = 80;

class Compressed : public testing::TestWithParam<DType> {
 protected:
  static DType dtype() { return GetParam(); }
  static EngineOptions options(std::int64_t batch = 512) {
    EngineOptions options = test::roomy(MILLRACE_TEST_DATA "/reference/deepseek-v4.gguf");
    options.demand.max_sequences = 2;
    options.demand.context_tokens = 512;
    options.demand.batch_tokens = batch;
    options.kv.share_prefixes = false;
    options.kv.dtype = dtype();
    return options;
  }
};

/// Tokens of a text whose every one from `differs` on is another.
std::vector<TokenId> some_tokens(std::int64_t count, std::int64_t differs = 1'000'000) {
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31 + (i >= differs ? 11 : 0)) % (kVocab - 3)));
  return tokens;
}

std::vector<float> logits_of(Engine& engine, std::vector<TokenId> prompt) {
  std::vector<float> logits;
  Request request = greedy(std::move(prompt), 20);
  keep_logits(request, logits);
  EXPECT_TRUE(engine.run(std::move(request)).status.ok());
  return logits;
}

TEST_P(Compressed, TakesARowForSeveralTokens) {
  const auto engine = make(options());
  const kv::Layout layout = engine->model().program().layout.with(dtype(), kv::kOnHost);
  std::vector<std::int64_t> ratios;
  for (const kv::Group& group : layout.groups())
    if (group.keeps_all()) ratios.push_back(group.ratio);
  EXPECT_EQ(ratios, (std::vector<std::int64_t>{4, 16}));
  // Of each token, in the long run: a quarter of a latent and of an index key, and a sixteenth of a latent.
  std::int64_t bytes = 0;
  for (const kv::Group& group : layout.groups())
    if (group.keeps_all()) bytes += group.block_bytes();
  const std::int64_t latent = row_bytes(dtype(), 64), index = 32 * (dtype() == DType::f32 ? 4 : 2);
  EXPECT_EQ(bytes, 16 * (latent + index) + 4 * latent);
}

TEST_P(Compressed, ChunksOfAnyLengthGiveTheSameBits) {
  const std::vector<float> expected = logits_of(*make(options()), some_tokens(150));
  ASSERT_EQ(expected.size(), 169 * kVocab);
  for (const std::int64_t batch : {1, 3, 7, 64})
    EXPECT_TRUE(logits_of(*make(options(batch)), some_tokens(150)) == expected) << batch << " rows a pass";
}

TEST_P(Compressed, ASessionGoesBackAndAnswersTheSame) {
  const auto engine = make(options(64));
  for (const std::int64_t agreed : {149, 147, 144, 128, 70, 0}) {
    const auto session = engine->new_session();
    ASSERT_TRUE(engine->run(greedy(some_tokens(150), 1), session.get()).status.ok());
    Request next = greedy(some_tokens(160, agreed), 20);
    Request alone = next;
    const Result result = engine->run(std::move(next), session.get());
    // Windows have let go of what tokens further back see.
    EXPECT_EQ(result.cached_tokens, agreed >= 144 ? agreed : 0);
    EXPECT_EQ(result.tokens, engine->run(std::move(alone)).tokens) << agreed;
  }
}

TEST_P(Compressed, RequestsThatBeginAlikeShareBlocksAndPasses) {
  EngineOptions sharing = options(64);
  sharing.demand.max_sequences = 4;
  sharing.kv.share_prefixes = true;
  const auto engine = make(sharing), plain = make(options());
  std::vector<std::vector<TokenId>> prompts;
  for (const std::int64_t differs : {200, 150, 70, 200}) prompts.push_back(some_tokens(200, differs));
  std::vector<Engine::Id> ids;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ids.push_back(*engine->submit(greedy(prompts[i], 30)));
    for (std::size_t pass = 0; pass < 2 * i; ++pass) engine->step();
  }
  drain(*engine);
  for (std::size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(engine->take(ids[i]).tokens, plain->run(greedy(prompts[i], 30)).tokens) << i;
  EXPECT_GT(engine->load().shared_tokens, 0u);
}

TEST_P(Compressed, ARestartTakesThePromptFromTheDisk) {
  const std::string folder = own_path("compressed-prompts-" + std::string(millrace::info(dtype()).name));
  std::filesystem::remove_all(folder);
  const millrace::test::RemovedLater removed(folder);
  EngineOptions caching = options(64);
  caching.kv.share_prefixes = true;
  caching.kv.prompt_cache = folder;
  caching.kv.prompt_cache_seconds = 0;
  {
    const auto engine = make(caching);
    ASSERT_TRUE(engine->run(greedy(some_tokens(200), 2)).status.ok());
    while (engine->saving()) engine->step();
  }
  const auto engine = make(caching);
  const Result result = engine->run(greedy(some_tokens(220), 30));
  EXPECT_EQ(result.cached_tokens, 192);
  EXPECT_EQ(result.tokens, make(options())->run(greedy(some_tokens(220), 30)).tokens);
}

/// Guesses that were wrong have completed rows; the tokens in their place complete them anew.
TEST_P(Compressed, GuessedTokensChangeNothing) {
  test::expect_drafts_to_change_nothing(options(), [](const Engine&) {
    std::vector<Request> requests;
    for (const std::int64_t count : {40, 90}) {
      std::vector<TokenId> prompt = some_tokens(count);
      prompt.insert(prompt.end(), prompt.begin(), prompt.begin() + 30);
      requests.push_back(greedy(prompt, 60));
      requests.back().ignore_end_tokens = true;
    }
    return requests;
  });
}

INSTANTIATE_TEST_SUITE_P(Kv, Compressed, testing::Values(DType::f16, DType::f32, DType::q8_0),
                         [](const auto& param) { return std::string(millrace::info(param.param).name); });

/// Of layers whose experts follow from the token they are known ahead; reading them early changes no bit.
TEST(ExpertsOfTokens, AreReadAheadAndChangeNothing) {
  EngineOptions options = test::roomy(MILLRACE_TEST_DATA "/reference/deepseek-v4.gguf");
  options.demand.context_tokens = 256;
  options.kv.dtype = DType::f16;
  const std::vector<float> expected = logits_of(*make(options), some_tokens(60));
  options.memory.tile_bytes = 4096;
  options.memory.ram_bytes = 1;
  const std::optional<std::uint64_t> smallest = test::named_ram(Engine::create(options).status().message());
  ASSERT_TRUE(smallest.has_value());
  options.memory.ram_bytes = *smallest;
  for (const exec::Prefetch prefetch : {exec::Prefetch::off, exec::Prefetch::always}) {
    options.experts.prefetch = prefetch;
    EXPECT_TRUE(logits_of(*make(options), some_tokens(60)) == expected) << static_cast<int>(prefetch);
  }
}

/// A copy of the checkpoint whose indexer chooses so many rows.
std::string choosing_rows(std::uint32_t top_k) {
  std::ifstream from(MILLRACE_TEST_DATA "/reference/deepseek-v4.gguf", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(from), {}};
  const std::string key = "deepseek4.attention.indexer.top_k";
  const std::size_t at = bytes.find(key);
  EXPECT_NE(at, std::string::npos);
  std::memcpy(bytes.data() + at + key.size() + 4, &top_k, sizeof top_k);  // behind the value's type
  const std::string path = own_path("choosing-rows-" + std::to_string(top_k) + ".gguf");
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// Up to as many rows as are chosen a token sees all, in every bit; beyond them it does not.
TEST(ChosenRows, AreAllUpToTheirNumber) {
  const auto logits_with = [](std::uint32_t top_k, std::int64_t batch) {
    EngineOptions options = test::roomy(choosing_rows(top_k));
    options.demand.context_tokens = 512;
    options.demand.batch_tokens = batch;
    return logits_of(*make(options), some_tokens(60));
  };
  const std::vector<float> all = logits_with(512, 512);
  for (const std::int64_t batch : {1, 7, 512}) {
    const std::vector<float> some = logits_with(8, batch);
    ASSERT_EQ(some.size(), all.size());
    const auto border = static_cast<std::ptrdiff_t>(35 * kVocab);  // token 35 is the last of the ninth row
    EXPECT_TRUE(std::equal(some.begin(), some.begin() + border, all.begin())) << batch;
    EXPECT_FALSE(std::equal(some.begin() + border, some.end(), all.begin() + border)) << batch;
  }
}

}  // namespace
}  // namespace millrace::engine

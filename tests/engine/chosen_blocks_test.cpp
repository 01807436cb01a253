// Attention over blocks that an indexer chooses: that it is attention over all up to as many, and that chunks, batches,
// beginnings in common, sessions that go back, drafts and the prompt cache never change a bit. MiniMax-M3's checkpoint:
// two KV heads, each of which sees two blocks of 64 tokens, one of them its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/drafters.h"
#include "engine/own_path.h"
#include "engine/support.h"
#include "fresh_folder.h"
#include "modelfile/gguf.h"

namespace millrace::engine {
namespace {

using test::drain;
using test::greedy;
using test::keep_logits;
using test::make;
using test::own_path;
using text::TokenId;

constexpr std::size_t kVocab = 80;
constexpr const char* kModel = MILLRACE_TEST_DATA "/reference/minimax-m3.gguf";

/// Tokens of a text whose every one from `differs` on is another.
std::vector<TokenId> block_tokens(std::int64_t count, std::int64_t differs = 1'000'000) {
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31 + (i >= differs ? 11 : 0)) % (kVocab - 3)));
  return tokens;
}

std::vector<float> block_logits(Engine& engine, std::int64_t tokens) {
  std::vector<float> logits;
  Request request = greedy(block_tokens(tokens), 20);
  request.ignore_end_tokens = true;
  keep_logits(request, logits);
  EXPECT_TRUE(engine.run(std::move(request)).status.ok());
  return logits;
}

EngineOptions block_options(const std::string& file, DType dtype, std::int64_t batch) {
  EngineOptions options = test::roomy(file);
  options.demand.max_sequences = 2;
  options.demand.context_tokens = 512;
  options.demand.batch_tokens = batch;
  options.kv.share_prefixes = false;
  options.kv.dtype = dtype;
  return options;
}

class ChosenBlocks : public testing::TestWithParam<DType> {
 protected:
  static EngineOptions options(std::int64_t batch = 512) { return block_options(kModel, GetParam(), batch); }
};

TEST_P(ChosenBlocks, AreChosenByAKeyOfEachToken) {
  const auto engine = make(options());
  const kv::Layout layout = engine->model().program().layout;
  EXPECT_EQ(layout.group_of(0).index_dim, 0);  // a dense layer sees all
  EXPECT_EQ(layout.group_of(1).index_dim, 64);
}

TEST_P(ChosenBlocks, ChunksOfAnyLengthGiveTheSameBits) {
  const std::vector<float> expected = block_logits(*make(options()), 300);
  ASSERT_EQ(expected.size(), 319 * kVocab);
  for (const std::int64_t batch : {1, 7, 64, 100})
    EXPECT_TRUE(block_logits(*make(options(batch)), 300) == expected) << batch << " rows a pass";
}

TEST_P(ChosenBlocks, ASessionGoesBackAndAnswersTheSame) {
  const auto engine = make(options(64));
  for (const std::int64_t agreed : {299, 192, 150, 0}) {
    const auto session = engine->new_session();
    ASSERT_TRUE(engine->run(greedy(block_tokens(300), 1), session.get()).status.ok());
    Request next = greedy(block_tokens(310, agreed), 20);
    Request alone = next;
    const Result result = engine->run(std::move(next), session.get());
    EXPECT_EQ(result.cached_tokens, agreed);
    EXPECT_EQ(result.tokens, engine->run(std::move(alone)).tokens) << agreed;
  }
}

TEST_P(ChosenBlocks, RequestsThatBeginAlikeShareBlocksAndPasses) {
  EngineOptions sharing = options(64);
  sharing.demand.max_sequences = 3;
  sharing.kv.share_prefixes = true;
  const auto engine = make(sharing), plain = make(options());
  std::vector<std::vector<TokenId>> prompts;
  for (const std::int64_t differs : {300, 250, 70}) prompts.push_back(block_tokens(300, differs));
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

TEST_P(ChosenBlocks, ARestartTakesThePromptFromTheDisk) {
  const std::string folder = own_path("block-prompts-" + std::string(info(GetParam()).name));
  std::filesystem::remove_all(folder);
  const millrace::test::RemovedLater removed(folder);
  EngineOptions caching = options(64);
  caching.kv.share_prefixes = true;
  caching.kv.prompt_cache = folder;
  caching.kv.prompt_cache_seconds = 0;
  {
    const auto engine = make(caching);
    ASSERT_TRUE(engine->run(greedy(block_tokens(300), 2)).status.ok());
    while (engine->saving()) engine->step();
  }
  const auto engine = make(caching);
  const Result result = engine->run(greedy(block_tokens(320), 30));
  EXPECT_EQ(result.cached_tokens, 256);
  EXPECT_EQ(result.tokens, make(options())->run(greedy(block_tokens(320), 30)).tokens);
}

INSTANTIATE_TEST_SUITE_P(Formats, ChosenBlocks, testing::Values(DType::f16, DType::f32, DType::q8_0, DType::q4_0),
                         [](const auto& of) { return std::string(millrace::info(of.param).name); });

std::string checkpoint_bytes() {
  std::ifstream from(kModel, std::ios::binary);
  return {std::istreambuf_iterator<char>(from), {}};
}

/// A copy of the checkpoint whose key, an integer, is another.
std::string with_key(const std::string& name, std::uint32_t value) {
  std::string bytes = checkpoint_bytes();
  const std::string key = "minimax-m3.attention.indexer." + name;
  const std::size_t at = bytes.find(key);
  EXPECT_NE(at, std::string::npos);
  std::memcpy(bytes.data() + at + key.size() + 4, &value, sizeof value);  // behind the value's type
  const std::string path = own_path(name + "-" + std::to_string(value) + ".gguf");
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// Up to as many blocks as are chosen it is attention over all, in every bit; beyond them it is not.
TEST(ChosenBlocksOfAFile, AreAllUpToTheirNumber) {
  const auto logits_with = [](std::uint32_t top_k, std::int64_t batch) {
    return block_logits(*make(block_options(with_key("top_k", top_k), DType::f32, batch)), 240);
  };
  const std::vector<float> all = logits_with(8, 512);
  for (const std::int64_t batch : {1, 7, 512}) {
    const std::vector<float> some = logits_with(3, batch);
    ASSERT_EQ(some.size(), all.size());
    const auto border = static_cast<std::ptrdiff_t>(3 * 64 * kVocab);
    EXPECT_TRUE(std::equal(some.begin(), some.begin() + border, all.begin())) << batch;
    EXPECT_FALSE(std::equal(some.begin() + border, some.end(), all.begin() + border)) << batch;
  }
}

/// A block of 128 tokens is two of the cache's, and a chunk of keys has eight such blocks.
TEST(ChosenBlocksOfAFile, MayBeSeveralOfTheCaches) {
  const std::string file = with_key("block_size", 128);
  const auto options = [&](std::int64_t batch) {
    EngineOptions options = block_options(file, DType::f16, batch);
    options.demand.context_tokens = 2048;
    return options;
  };
  const std::vector<float> expected = block_logits(*make(options(512)), 1500);
  EXPECT_TRUE(block_logits(*make(options(100)), 1500) == expected);
}

/// Whose queries of the index heads are 0, so that all blocks score alike.
std::string with_ties() {
  const auto file = modelfile::Model::open(kModel);
  std::string bytes = checkpoint_bytes();
  const modelfile::TensorInfo& tensor = *file->find("blk.1.indexer.q_norm.weight");
  std::memset(bytes.data() + tensor.offset, 0, tensor.bytes);
  const std::string path = own_path("ties.gguf");
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// Of equal blocks the lower numbers are chosen, whatever shares a pass.
TEST(ChosenBlocksOfAFile, TiesGoToTheLowerNumber) {
  const std::string file = with_ties();
  const std::vector<float> expected = block_logits(*make(block_options(file, DType::f32, 512)), 300);
  for (const std::int64_t batch : {1, 7})
    EXPECT_TRUE(block_logits(*make(block_options(file, DType::f32, batch)), 300) == expected) << batch;
  const std::vector<float> chosen = block_logits(*make(block_options(kModel, DType::f32, 512)), 300);
  EXPECT_FALSE(chosen == expected);
}

TEST(ChosenBlocksOfAFile, GuessedTokensChangeNothing) {
  test::expect_drafts_to_change_nothing(block_options(kModel, DType::f16, 64), [](const Engine&) {
    std::vector<Request> requests;
    for (const std::int64_t count : {130, 200}) {
      std::vector<TokenId> prompt = block_tokens(count);
      prompt.insert(prompt.end(), prompt.begin(), prompt.begin() + 30);
      requests.push_back(greedy(prompt, 40));
      requests.back().ignore_end_tokens = true;
    }
    return requests;
  });
}

}  // namespace
}  // namespace millrace::engine

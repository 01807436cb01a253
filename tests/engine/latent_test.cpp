// Layers that keep latents: what their KV takes, and that chunks, batches, beginnings in common, sessions that go back
// and the prompt cache never change a bit. DeepSeek V3's checkpoint: three heads over latents of 64 + 32 channels; and
// GLM-5's, where an indexer chooses 24 of the tokens, for two layers of three.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <tuple>

#include "engine/reference.h"
#include "engine/support.h"
#include "modelfile/quantize.h"

namespace millrace::engine {
namespace {

using test::drain;
using test::greedy;
using test::keep_logits;
using test::make;
using text::TokenId;

constexpr std::size_t kVocab = 80;

class Latents : public testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  static const char* name() { return std::get<0>(GetParam()); }
  static DType dtype() { return std::get<1>(GetParam()); }
  static EngineOptions options(std::int64_t batch = 512, const char* name = Latents::name()) {
    EngineOptions options = test::roomy(std::string(MILLRACE_TEST_DATA "/reference/") + name + ".gguf");
    options.demand.max_sequences = 2;
    options.demand.context_tokens = 512;
    options.demand.batch_tokens = batch;
    options.kv.share_prefixes = false;
    options.kv.dtype = dtype();
    return options;
  }
};

/// Tokens of a text whose every one from `differs` on is another.
std::vector<TokenId> latent_tokens(std::int64_t count, std::int64_t differs = 1'000'000) {
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31 + (i >= differs ? 11 : 0)) % (kVocab - 3)));
  return tokens;
}

std::vector<float> latent_logits(Engine& engine, std::vector<TokenId> prompt) {
  std::vector<float> logits;
  Request request = greedy(std::move(prompt), 20);
  request.ignore_end_tokens = true;
  keep_logits(request, logits);
  EXPECT_TRUE(engine.run(std::move(request)).status.ok());
  return logits;
}

TEST(PlanOnly, LeavesBlocksThatGuessTokensOnTheDisk) {
  const Expected<Planned> planned = plan_only(test::roomy(MILLRACE_TEST_DATA "/reference/glm-4.7-flash.gguf"));
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->draft_blocks, 1);
  EXPECT_GT(planned->draft_block_bytes, 0u);
}

TEST(KvOfFourBits, IsRefusedInWordsWhereItDoesNotFit) {
  EngineOptions options = test::roomy(MILLRACE_TEST_DATA "/reference/deepseek-v3.gguf");
  options.kv.dtype = DType::q4_0;
  const Status status = Engine::create(options).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_EQ(status.message(), "--kv q4_0 is not for latents, which this model keeps; use --kv q8_0");
  options.kv.dtype = DType::q4_k;
  EXPECT_NE(Engine::create(options).status().message().find("not as q4_k; use --kv f16"), std::string::npos);
}

TEST_P(Latents, TakeARowATokenAndLayer) {
  const auto engine = make(options());
  const kv::Layout layout = engine->model().program().layout.with(dtype(), kv::kOnHost);
  const std::int64_t latent = row_bytes(dtype(), 64 + 32);
  for (const kv::Group& group : layout.groups()) EXPECT_EQ(group.keeps, kv::Keeps::latent);
  if (std::string_view(name()) == "deepseek-v3") {
    EXPECT_EQ(layout.groups().size(), 1u);
    EXPECT_EQ(layout.bytes_per_token(), 2 * latent);
  } else {  // index keys of two layers of three, which lose no bits with the others
    ASSERT_EQ(layout.groups().size(), 2u);
    EXPECT_EQ(layout.bytes_per_token(), 3 * latent + 2 * 64 * (dtype() == DType::f32 ? 4 : 2));
  }
}

TEST_P(Latents, ChunksOfAnyLengthGiveTheSameBits) {
  for (const char* name : {Latents::name(), "deepseek-v2-lite-unsplit"}) {
    const std::vector<float> expected = latent_logits(*make(options(512, name)), latent_tokens(150));
    ASSERT_EQ(expected.size(), 169 * kVocab);
    for (const std::int64_t batch : {1, 7, 64})
      EXPECT_TRUE(latent_logits(*make(options(batch, name)), latent_tokens(150)) == expected)
          << name << ", " << batch << " rows a pass";
  }
}

/// A copy of GLM-5's checkpoint whose indexer chooses so many tokens.
std::string choosing(std::uint32_t top_k) {
  std::ifstream from(MILLRACE_TEST_DATA "/reference/glm-dsa.gguf", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(from), {}};
  const std::string key = "glm-dsa.attention.indexer.top_k";
  const std::size_t at = bytes.find(key);
  EXPECT_NE(at, std::string::npos);
  std::memcpy(bytes.data() + at + key.size() + 4, &top_k, sizeof top_k);  // behind the value's type
  const std::string path = testing::TempDir() + "/choosing-" + std::to_string(top_k) + ".gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// Up to as many tokens as are chosen it is attention over all, in every bit; beyond them it is not.
TEST(ChosenKeys, AreAllUpToTheirNumber) {
  const auto logits_with = [](std::uint32_t top_k, std::int64_t batch) {
    EngineOptions options = test::roomy(choosing(top_k));
    options.demand.context_tokens = 512;
    options.demand.batch_tokens = batch;
    return latent_logits(*make(options), latent_tokens(60));
  };
  const std::vector<float> all = logits_with(512, 512);
  for (const std::int64_t batch : {1, 7, 512}) {
    const std::vector<float> some = logits_with(40, batch);
    ASSERT_EQ(some.size(), all.size());
    const auto border = static_cast<std::ptrdiff_t>(40 * kVocab);
    EXPECT_TRUE(std::equal(some.begin(), some.begin() + border, all.begin())) << batch;
    EXPECT_FALSE(std::equal(some.begin() + border, some.end(), all.begin() + border)) << batch;
  }
}

TEST_P(Latents, ASessionGoesBackAndAnswersTheSame) {
  const auto engine = make(options(64));
  for (const std::int64_t agreed : {149, 128, 70, 0}) {
    const auto session = engine->new_session();
    ASSERT_TRUE(engine->run(greedy(latent_tokens(150), 1), session.get()).status.ok());
    Request next = greedy(latent_tokens(160, agreed), 20);
    Request alone = next;
    const Result result = engine->run(std::move(next), session.get());
    EXPECT_EQ(result.cached_tokens, agreed);
    EXPECT_EQ(result.tokens, engine->run(std::move(alone)).tokens) << agreed;
  }
}

TEST_P(Latents, RequestsThatBeginAlikeShareBlocksAndPasses) {
  EngineOptions sharing = options(64);
  sharing.demand.max_sequences = 4;
  sharing.kv.share_prefixes = true;
  const auto engine = make(sharing), plain = make(options());
  std::vector<std::vector<TokenId>> prompts;
  for (const std::int64_t differs : {200, 150, 70, 200}) prompts.push_back(latent_tokens(200, differs));
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

TEST_P(Latents, ARestartTakesThePromptFromTheDisk) {
  const std::string folder =
      testing::TempDir() + "/latent-prompts-" + std::string(name()) + std::string(info(dtype()).name);
  std::filesystem::remove_all(folder);
  EngineOptions caching = options(64);
  caching.kv.share_prefixes = true;
  caching.kv.prompt_cache = folder;
  caching.kv.prompt_cache_seconds = 0;
  {
    const auto engine = make(caching);
    ASSERT_TRUE(engine->run(greedy(latent_tokens(200), 2)).status.ok());
    while (engine->saving()) engine->step();
  }
  const auto engine = make(caching);
  const Result result = engine->run(greedy(latent_tokens(220), 30));
  EXPECT_EQ(result.cached_tokens, 192);
  EXPECT_EQ(result.tokens, make(options())->run(greedy(latent_tokens(220), 30)).tokens);
  std::filesystem::remove_all(folder);
}

/// Products by heads take quantized weights: split, and transposed where keys and values are one tensor. What 8 bits of
/// a state change here and there is an expert: llama.cpp is 0.05 and 0.16 from two of these.
TEST(LatentWeights, QuantizedOnesStayClose) {
  for (const char* name : {"deepseek-v3", "glm-4.7-flash", "deepseek-v2-lite", "deepseek-v2-lite-unsplit"}) {
    SCOPED_TRACE(name);
    const std::string reference = std::string(MILLRACE_TEST_DATA "/reference/") + name;
    const std::string file = testing::TempDir() + "/latent-quantized.gguf";
    modelfile::QuantizeOptions to;
    to.type = modelfile::QuantizeType::q8_0;
    ASSERT_TRUE(modelfile::quantize(reference + ".gguf", file, to).ok());
    const std::string answers = reference.substr(0, reference.find("-unsplit")) + ".bin";
    const test::Agreement found = test::agreement(test::roomy(file), answers);
    EXPECT_LE(found.relative_l2, 0.2);
    EXPECT_GE(found.same_argmax, 0.95);
    std::filesystem::remove(file);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Latents,
                         testing::Combine(testing::Values("deepseek-v3", "glm-dsa"),
                                          testing::Values(DType::f16, DType::f32, DType::q8_0)),
                         [](const auto& of) {
                           const bool indexed = std::string_view(std::get<0>(of.param)) == "glm-dsa";
                           return std::string(millrace::info(std::get<1>(of.param)).name) + (indexed ? "_indexed" : "");
                         });

}  // namespace
}  // namespace millrace::engine

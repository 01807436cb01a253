// What every device has to hold to where layers keep latents, with or without an indexer: chunks, batches, beginnings
// in common, sessions that go back and the prompt cache never change a bit. Each takes what makes an engine's options
// of a checkpoint's file and a batch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "engine/own_path.h"
#include "engine/support.h"
#include "fresh_folder.h"

namespace millrace::engine::test {

using text::TokenId;

constexpr std::size_t kLatentVocab = 80;

using MakeLatentOptions = std::function<EngineOptions(const std::string& file, std::int64_t batch)>;

inline std::string latent_file(const std::string& name) {
  return std::string(MILLRACE_TEST_DATA "/reference/") + name + ".gguf";
}

inline EngineOptions latent_options(const std::string& file, std::int64_t batch, DType dtype) {
  EngineOptions options = roomy(file);
  options.demand.max_sequences = 2;
  options.demand.context_tokens = 512;
  options.demand.batch_tokens = batch;
  options.kv.share_prefixes = false;
  options.kv.dtype = dtype;
  return options;
}

/// Tokens of a text whose every one from `differs` on is another.
inline std::vector<TokenId> latent_tokens(std::int64_t count, std::int64_t differs = 1'000'000) {
  constexpr auto kVocab = static_cast<std::int64_t>(kLatentVocab);
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31 + (i >= differs ? 11 : 0)) % (kVocab - 3)));
  return tokens;
}

inline std::vector<float> latent_logits(Engine& engine, std::vector<TokenId> prompt) {
  std::vector<float> logits;
  Request request = greedy(std::move(prompt), 20);
  request.ignore_end_tokens = true;
  keep_logits(request, logits);
  EXPECT_TRUE(engine.run(std::move(request)).status.ok());
  return logits;
}

inline void expect_chunks_of_any_length_to_give_the_same_bits(const MakeLatentOptions& options,
                                                              const std::string& file) {
  const std::vector<float> expected = latent_logits(*make(options(file, 512)), latent_tokens(150));
  ASSERT_EQ(expected.size(), 169 * kLatentVocab);
  for (const std::int64_t batch : {1, 7, 64})
    EXPECT_TRUE(latent_logits(*make(options(file, batch)), latent_tokens(150)) == expected)
        << file << ", " << batch << " rows a pass";
}

/// A copy of GLM-5's checkpoint whose indexer chooses so many tokens.
inline std::string choosing(std::uint32_t top_k) {
  std::ifstream from(latent_file("glm-dsa"), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(from), {}};
  const std::string key = "glm-dsa.attention.indexer.top_k";
  const std::size_t at = bytes.find(key);
  EXPECT_NE(at, std::string::npos);
  std::memcpy(bytes.data() + at + key.size() + 4, &top_k, sizeof top_k);  // behind the value's type
  std::string path = own_path("choosing-" + std::to_string(top_k) + ".gguf");
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// Up to as many tokens as are chosen it is attention over all, in every bit; beyond them it is not.
inline void expect_all_keys_up_to_their_number(const MakeLatentOptions& options) {
  const std::vector<float> all = latent_logits(*make(options(choosing(512), 512)), latent_tokens(60));
  for (const std::int64_t batch : {1, 7, 512}) {
    const std::vector<float> some = latent_logits(*make(options(choosing(40), batch)), latent_tokens(60));
    ASSERT_EQ(some.size(), all.size());
    const auto border = static_cast<std::ptrdiff_t>(40 * kLatentVocab);
    EXPECT_TRUE(std::equal(some.begin(), some.begin() + border, all.begin())) << batch;
    EXPECT_FALSE(std::equal(some.begin() + border, some.end(), all.begin() + border)) << batch;
  }
}

inline void expect_a_session_to_go_back(const MakeLatentOptions& options, const std::string& file) {
  const auto engine = make(options(file, 64));
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

inline void expect_requests_that_begin_alike_to_share_blocks(const MakeLatentOptions& options,
                                                             const std::string& file) {
  EngineOptions sharing = options(file, 64);
  sharing.demand.max_sequences = 4;
  sharing.kv.share_prefixes = true;
  const auto engine = make(sharing), plain = make(options(file, 512));
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

/// label: of a folder that no other test has.
inline void expect_a_restart_to_take_the_prompt_from_the_disk(const MakeLatentOptions& options, const std::string& file,
                                                              const std::string& label) {
  const std::string folder = own_path("latent-prompts-" + label);
  std::filesystem::remove_all(folder);
  const millrace::test::RemovedLater removed(folder);
  EngineOptions caching = options(file, 64);
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
  EXPECT_EQ(result.tokens, make(options(file, 512))->run(greedy(latent_tokens(220), 30)).tokens);
}

}  // namespace millrace::engine::test

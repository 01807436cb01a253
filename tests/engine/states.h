// What every device has to hold to where layers keep a state: nobody sees how a sequence was cut, taken back, thrown
// out or restored. Each takes what makes an engine's options of its batch and of whether it shares beginnings.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "engine/own_path.h"
#include "engine/support.h"
#include "fresh_folder.h"

namespace millrace::engine::test {

using text::TokenId;

inline EngineOptions options_of(const std::string& model, std::int64_t batch, bool share) {
  EngineOptions options = roomy(MILLRACE_TEST_DATA "/reference/" + model + ".gguf");
  options.demand.max_sequences = 1;
  options.demand.context_tokens = 512;
  options.demand.batch_tokens = batch;
  options.kv.share_prefixes = share;
  return options;
}

using MakeOptions = std::function<EngineOptions(std::int64_t batch, bool share)>;

inline std::vector<TokenId> some_tokens(std::int64_t count, std::int64_t differs = 1'000'000) {
  constexpr std::int64_t kVocab = 80;
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31 + (i >= differs ? 11 : 0)) % (kVocab - 3)));
  return tokens;
}

inline Request answer_of(std::vector<TokenId> prompt, std::int64_t tokens = 30) {
  Request request = greedy(std::move(prompt), tokens);
  request.ignore_end_tokens = true;
  return request;
}

inline std::vector<float> logits_of(Engine& engine, std::vector<TokenId> prompt) {
  std::vector<float> logits;
  Request request = answer_of(std::move(prompt), 40);
  keep_logits(request, logits);
  EXPECT_TRUE(engine.run(std::move(request)).status.ok());
  return logits;
}

inline void expect_chunks_to_give_the_same_bits(const MakeOptions& options_for) {
  const auto whole = make(options_for(512, false));
  const std::vector<TokenId> prompt = some_tokens(300);
  const std::vector<float> expected = logits_of(*whole, prompt);
  for (const std::int64_t batch : {1, 7, 63, 64, 100, 170, 255}) {
    const auto engine = make(options_for(batch, false));
    EXPECT_TRUE(logits_of(*engine, prompt) == expected) << batch << " rows a pass";
    EXPECT_EQ(engine->load().kv_blocks, 0);
  }
}

inline void expect_a_session_to_go_back_to_a_checkpoint(const MakeOptions& options_for) {
  EngineOptions options = options_for(64, false);
  options.demand.max_sequences = 2;  // states for the session and a stranger
  const auto engine = make(options);
  for (const std::int64_t agreed : {329, 299, 257, 256, 255, 20, 0}) {
    const auto session = engine->new_session();
    const Result first = engine->run(answer_of(some_tokens(300)), session.get());
    std::vector<TokenId> held = some_tokens(300);
    held.insert(held.end(), first.tokens.begin(), first.tokens.end());
    held.resize(static_cast<std::size_t>(agreed));
    for (const TokenId token : some_tokens(30, 0)) held.push_back(token);
    const Result result = engine->run(answer_of(held), session.get());
    EXPECT_TRUE(result.cached_tokens == agreed || result.cached_tokens % 64 == 0) << result.cached_tokens;
    EXPECT_GE(result.cached_tokens, agreed >= 256 ? 256 : 0);
    EXPECT_LE(result.cached_tokens, agreed);
    EXPECT_EQ(result.tokens, engine->run(answer_of(held)).tokens) << agreed;
  }
}

inline void expect_requests_that_begin_alike_to_share(const MakeOptions& options_for) {
  EngineOptions options = options_for(64, true);
  options.demand.max_sequences = 4;
  const auto engine = make(options);
  std::vector<std::vector<TokenId>> prompts, alone;
  for (const std::int64_t differs : {400, 300, 250, 130, 70, 400}) prompts.push_back(some_tokens(400, differs));
  {
    const auto plain = make(options_for(512, false));
    for (const auto& prompt : prompts) alone.push_back(plain->run(answer_of(prompt)).tokens);
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<Engine::Id> ids;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ids.push_back(*engine->submit(answer_of(prompts[i])));
      for (std::size_t pass = 0; pass < i; ++pass) engine->step();
    }
    drain(*engine);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Result result = engine->take(ids[i]);
      EXPECT_TRUE(result.status.ok()) << result.status.message();
      EXPECT_EQ(result.tokens, alone[i]) << i;
    }
    EXPECT_LE(engine->load().kv_blocks, engine->load().kv_blocks_bound);
  }
  EXPECT_GT(engine->load().shared_tokens, 0u);
  engine->drop_shared();
  EXPECT_EQ(engine->load().kv_blocks, 0) << "every block is back";
}

inline void expect_the_next_turn_to_go_on_from_the_prompt(const MakeOptions& options_for) {
  const auto engine = make(options_for(512, true));
  std::vector<TokenId> prompt = some_tokens(300);
  ASSERT_TRUE(engine->run(answer_of(prompt, 150)).status.ok());
  // The template leaves out what was thought: the next turn agrees up to the end of the first one's prompt.
  for (const TokenId token : some_tokens(60, 0)) prompt.push_back(token);
  const Result next = engine->run(answer_of(prompt));
  EXPECT_EQ(next.cached_tokens, 256);
  EXPECT_EQ(next.tokens, make(options_for(512, false))->run(answer_of(prompt)).tokens);
}

inline void expect_a_preempted_request_to_answer_the_same(const MakeOptions& options_for) {
  std::vector<std::vector<TokenId>> alone;
  {
    const auto plain = make(options_for(512, false));
    for (std::int64_t i = 0; i < 3; ++i) alone.push_back(plain->run(answer_of(some_tokens(200, 10 * i), 150)).tokens);
  }
  EngineOptions options = options_for(512, false);
  options.demand.max_sequences = 3;
  options.demand.kv_tokens = 640;
  const auto engine = make(options);
  std::vector<Engine::Id> ids;
  for (std::int64_t i = 0; i < 3; ++i) ids.push_back(*engine->submit(answer_of(some_tokens(200, 10 * i), 150)));
  drain(*engine);
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(engine->take(ids[i]).tokens, alone[i]) << i;
  const bool grows = engine->model().program().layout.bytes_per_token() > 0;
  EXPECT_EQ(engine->load().preempted > 0, grows) << "states alone take no more with time";
}

inline void expect_the_prompt_cache_to_give_back_checkpoints(const MakeOptions& options_for, const std::string& name) {
  const std::string folder = own_path("state-prompts-" + name);
  std::filesystem::remove_all(folder);
  const millrace::test::RemovedLater removed(folder);
  EngineOptions options = options_for(64, true);
  options.kv.prompt_cache = folder;
  options.kv.prompt_cache_seconds = 0;
  const auto cold = make(options_for(512, false));
  {
    const auto engine = make(options);
    ASSERT_TRUE(engine->run(answer_of(some_tokens(330), 2)).status.ok());
    while (engine->saving()) engine->step();
  }
  const auto engine = make(options);
  const std::vector<TokenId> longer = some_tokens(350);
  const Result result = engine->run(answer_of(longer));
  EXPECT_EQ(result.cached_tokens, 320);
  EXPECT_EQ(result.tokens, cold->run(answer_of(longer)).tokens);
}

/// Experts are read as routers name them, behind what the layer has done to its state; these reads fail, in a prompt's
/// pass or an answer's. What was there before is still right. streamed: `resident` with fewer experts than there are.
inline void expect_failed_reads_to_leave_no_half_updated_state(const EngineOptions& resident,
                                                               const EngineOptions& streamed) {
  EngineOptions options = streamed;
  options.storage.backend = storage::BackendKind::pread_buffered;
  const std::vector<TokenId> prompt = some_tokens(150);
  const std::vector<TokenId> expected = make(resident)->run(answer_of(prompt)).tokens;
  int struck = 0;
  for (const int after : {0, 4, 12, 20, 30, 40, 55, 70, 90, 120}) {
    SCOPED_TRACE(after);
    options.storage.faults = {*storage::parse_fault("eio@" + std::to_string(after))};
    Expected<std::unique_ptr<Engine>> engine = Engine::create(options);
    if (!engine.ok()) continue;  // it struck while loading
    const auto session = (*engine)->new_session();
    const Result first = (*engine)->run(answer_of(prompt), session.get());
    struck += first.finish == Finish::error ? 1 : 0;
    EXPECT_LE(first.tokens.size(), expected.size());
    EXPECT_TRUE(std::equal(first.tokens.begin(), first.tokens.end(), expected.begin()));
    const Result next = (*engine)->run(answer_of(prompt), session.get());
    EXPECT_EQ(next.tokens, expected) << next.status.message();
    if (!first.tokens.empty()) {
      EXPECT_GT(next.cached_tokens, 0) << "what was right is kept";
    }
  }
  EXPECT_GE(struck, 3);
}

}  // namespace millrace::engine::test

// What every drafter that is part of the model has to hold to.
#pragma once

#include <unistd.h>

#include <filesystem>

#include "engine/checkpoint_path.h"
#include "engine/drafters.h"

namespace millrace::engine::test {

/// `who`: as --draft has it.
inline EngineOptions within(EngineOptions options, const std::string& who, std::int64_t drafts = 4) {
  options = drafting(std::move(options), nullptr, drafts);
  EXPECT_TRUE(read_draft(who, options.speculate).ok());
  return options;
}

inline EngineOptions several(const std::string& path) {
  EngineOptions options = roomy(path);
  options.demand.max_sequences = 3;
  options.demand.context_tokens = 256;
  options.kv.share_prefixes = true;
  return options;
}

/// The smallest budget that a model of these options runs under, and so much more.
inline std::uint64_t ram_above_smallest(EngineOptions options, double factor) {
  options.memory.ram_bytes = 1;
  const std::optional<std::uint64_t> smallest = named_ram(plan_only(options).status().message());
  EXPECT_TRUE(smallest.has_value());
  return static_cast<std::uint64_t>(static_cast<double>(smallest.value_or(0)) * factor);
}

inline std::vector<Request> questions(const Engine& engine) {
  std::vector<Request> requests;
  for (const char* question :
       {"Tell me a story about a fox.", "Write JSON for Finn, who is 38 years old and lives in Niamey.",
        "Count to ten.", "Tell me a story about a fox."})
    requests.push_back(greedy(chat(engine, question), 60));
  requests[2].sampler.temperature = 1.1f;
  requests[2].sampler.seed = 7;
  requests[2].sampler.penalties.repeat = 1.2f;
  requests[3].stop = {" named"};
  return requests;
}

inline void expect_no_change(const EngineOptions& options, const std::string& who, const MakeRequests& make_requests,
                             bool streams = false) {
  const auto plain = make(options), engine = make(within(options, who));
  ASSERT_TRUE(plain != nullptr && engine != nullptr);
  const std::vector<Told> expected = answers(*plain, make_requests(*plain)),
                          told = answers(*engine, make_requests(*engine));
  for (std::size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i].tokens, expected[i].tokens) << i;
    EXPECT_TRUE(told[i] == expected[i]) << i << ": logits, probabilities, text or end differ";
  }
  const LoadCounters load = engine->load();
  ASSERT_EQ(load.drafts.size(), 1u);
  const int layers = engine->plan().front_layers;
  EXPECT_EQ(load.drafts[0].drafter, who.starts_with("self")
                                        ? fmt::format("self {} layer{}", layers, layers == 1 ? "" : "s")
                                    : who == "mtp"                               ? who
                                    : who.find("assistant") != std::string::npos ? "assistant"
                                                                                 : "eagle3");
  EXPECT_GT(load.drafts[0].drafted, 0u);
  EXPECT_EQ(plain->load().drafts.size(), 0u);
  if (streams) {  // how often more than once depends on how long passes take
    EXPECT_GE(engine->store().counters().bytes_from_disk, engine->model().units().total_bytes());
  }
  engine->drop_shared();
  EXPECT_EQ(engine->load().kv_blocks, 0) << "every block is back";
}

inline void expect_no_change_by_preemption(EngineOptions options, const std::string& who,
                                           const MakeRequests& requests) {
  options.demand.kv_tokens = 256;
  expect_no_change(options, who, requests);
  const auto engine = make(within(options, who));
  for (Request& request : requests(*engine)) ASSERT_TRUE(engine->submit(std::move(request)).ok());
  drain(*engine);
  EXPECT_GT(engine->load().preempted, 0u) << "the test is about this";
}

inline EngineOptions of_512(const std::string& path) {
  EngineOptions options = roomy(path);
  options.demand.context_tokens = 512;
  return options;
}

inline void expect_same_session(const EngineOptions& options, const std::string& who) {
  const auto plain = make(options), engine = make(within(options, who));
  const auto expected = plain->new_session(), session = engine->new_session();
  std::vector<TokenId> text(30, 5);
  for (int turn = 0; turn < 4; ++turn) {
    Request request = greedy(text, 41);
    request.ignore_end_tokens = true;
    const Result one = plain->run(request, expected.get()), other = engine->run(request, session.get());
    EXPECT_EQ(one.tokens, other.tokens) << turn;
    EXPECT_GT(other.drafted, 0) << turn;
    text.insert(text.end(), one.tokens.begin(), one.tokens.end());
    text.push_back(9);
  }
}

/// Prompts that the disk remembers: a drafter goes on from them.
inline void expect_same_of_restored(EngineOptions options, const std::string& who) {
  const auto folder = std::filesystem::temp_directory_path() / ("within-prompts-" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  options.kv.share_prefixes = true;
  const std::int64_t vocab = make(options)->model().hyperparameters().vocab;
  std::vector<TokenId> prompt;
  for (std::int64_t i = 0; i < 200; ++i) prompt.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31) % (vocab - 3)));
  Request request = greedy(prompt, 60);
  request.ignore_end_tokens = true;
  const Result expected = make(options)->run(request);
  options.kv.prompt_cache = folder.string();
  options.kv.prompt_cache_seconds = 0;
  for (const std::int64_t cached : {0, 192}) {
    const auto engine = make(within(options, who));
    const Result result = engine->run(request);
    EXPECT_EQ(result.tokens, expected.tokens);
    EXPECT_EQ(result.cached_tokens, cached);
    EXPECT_GT(result.drafted, 0);
    while (engine->saving()) engine->step();
  }
  std::filesystem::remove_all(folder);
}

inline void expect_right_as_told(const EngineOptions& options) {
  const auto engine = make(options);
  Request request = greedy(std::vector<TokenId>(40, 5), 300);
  request.ignore_end_tokens = true;
  for (TokenId i = 0; i < 300; ++i) request.forced_tokens.push_back(3 + i * i % 70);
  request.drafts_right = 0.8;
  const Result result = engine->run(std::move(request));
  EXPECT_NEAR(299.0 / static_cast<double>(result.decode_turns), 3.36, 0.5) << "1 + p + p^2 + p^3 + p^4";
  EXPECT_GT(engine->load().drafts[0].seconds, 0);
}

/// A word in the log, and the answer without it.
inline void expect_left_out(EngineOptions options, const std::string& who, const std::string& word) {
  testing::internal::CaptureStderr();
  const auto engine = make(within(std::move(options), who));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find(" is left out: "), std::string::npos) << log;
  EXPECT_NE(log.find(word), std::string::npos) << log;
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->plan().front_layers, 0);
  EXPECT_EQ(engine->draft_seat().place, DraftPlace::none);
  EXPECT_EQ(engine->load().drafts.front().drafter, "ngram") << word;
}

}  // namespace millrace::engine::test

// Many requests at once: who goes when, what they share, and that none changes another's tokens.
#include <gtest/gtest.h>

#include "engine/support.h"

namespace millrace::engine {
namespace {

using test::chat;
using test::draft_path;
using test::drain;
using test::greedy;
using test::make;
using test::moe_path;
using test::real_text;
using test::roomy;
using text::TokenId;

EngineOptions serving(const std::string& path, std::int64_t sequences) {
  EngineOptions options = roomy(path);
  options.demand.max_sequences = sequences;
  options.demand.context_tokens = 512;
  options.kv.share_prefixes = true;
  return options;
}

const std::vector<std::string> kQuestions = {
    "What is the capital of France?",
    "Tell me a short story.",
    "What is 2 + 2?",
    "Who are you?",
    "Tell me a story about a fox.",
    "What is the capital of Spain?",
    "Count to ten.",
    "What is the colour of the sky?",
};

TEST(Batching, SixteenStreamsGiveTheTextsEachGetsAlone) {
  std::vector<std::string> alone;
  {
    EngineOptions plain = roomy(moe_path());
    const auto engine = make(plain);
    for (const auto& question : kQuestions) alone.push_back(engine->run(greedy(chat(*engine, question), 60)).text);
  }
  const auto engine = make(serving(moe_path(), 16));
  std::vector<Engine::Id> ids;
  for (int i = 0; i < 16; ++i) {
    ids.push_back(*engine->submit(greedy(chat(*engine, kQuestions[static_cast<std::size_t>(i % 8)]), 60)));
    for (int pass = 0; pass < i % 3; ++pass) engine->step();  // they join while others decode
  }
  drain(*engine);
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(engine->take(ids[i]).text, alone[i % 8]) << kQuestions[i % 8];
  engine->drop_shared();
  EXPECT_EQ(engine->load().kv_blocks, 0) << "every block is back";
}

TEST(Batching, AFirstTokenWithinTwoPassesBesideStreamsAndALongPrompt) {
  EngineOptions options = serving(draft_path(), 4);
  options.demand.chunk_tokens = 32;
  options.demand.batch_tokens = 64;
  const auto engine = make(options);
  int streamed = 0;
  Request stream = greedy(chat(*engine, "Tell me a short story."), 200);
  stream.ignore_end_tokens = true;
  stream.on_text = [&](std::string_view, std::span<const TokenId> tokens) {
    streamed += static_cast<int>(tokens.size());
  };
  const Engine::Id stream_id = *engine->submit(std::move(stream));
  engine->step();
  const Engine::Id long_id = *engine->submit(greedy(real_text(*engine, 400), 4));
  engine->step();
  int passes = 0, first_token_at = 0;
  Request fresh = greedy(real_text(*engine, 32, 4000), 8);
  fresh.ignore_end_tokens = true;
  fresh.on_logits = [&](std::int64_t, std::span<const float>) {
    first_token_at = first_token_at == 0 ? passes : first_token_at;
  };
  const Engine::Id fresh_id = *engine->submit(std::move(fresh));
  const int before = streamed;
  for (; passes < 6;) {
    ++passes;
    engine->step();
  }
  EXPECT_LE(first_token_at, 2);
  EXPECT_GE(first_token_at, 1);
  EXPECT_GE(streamed - before, 4) << "the stream went on beside both prompts";
  engine->cancel(stream_id);
  drain(*engine);
  EXPECT_EQ(engine->take(long_id).finish, Finish::length);
  EXPECT_EQ(engine->take(fresh_id).tokens.size(), 8u);
}

TEST(Batching, ACommonBeginningIsComputedOnce) {
  const std::vector<TokenId> system = [] { return real_text(*make(roomy(draft_path())), 256); }();
  const auto engine = make(serving(draft_path(), 4));
  std::vector<Engine::Id> ids;
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<TokenId> prompt = system;
    const auto own = real_text(*engine, 20, 3000 + 500 * i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompts.push_back(prompt);
    ids.push_back(*engine->submit(greedy(prompt, 5)));
  }
  drain(*engine);
  EXPECT_GE(engine->load().shared_tokens, 3u * 256u);
  EXPECT_LE(engine->load().rows, 256u + 4 * 20 + 4 * 5);
  const auto plain = make(roomy(draft_path()));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(engine->take(ids[i]).tokens, plain->run(greedy(prompts[i], 5)).tokens);
}

TEST(Batching, WhoLosesItsKvBeginsAgainAndSaysTheSame) {
  EngineOptions options = serving(draft_path(), 4);
  options.demand.context_tokens = 256;
  options.demand.kv_tokens = 256;  // as much as one of them may take
  const auto engine = make(options);
  const auto plain = make(roomy(draft_path()));
  std::vector<Engine::Id> ids;
  for (std::size_t i = 0; i < 4; ++i) {
    Request request = greedy(real_text(*engine, 50, 300 * i), 100);
    request.ignore_end_tokens = true;
    ids.push_back(*engine->submit(std::move(request)));
  }
  drain(*engine);
  EXPECT_GT(engine->load().preempted, 0u);
  for (std::size_t i = 0; i < 4; ++i) {
    Request request = greedy(real_text(*engine, 50, 300 * i), 100);
    request.ignore_end_tokens = true;
    const Result result = engine->take(ids[i]);
    EXPECT_EQ(result.finish, Finish::length) << result.status.message();
    EXPECT_EQ(result.tokens, plain->run(std::move(request)).tokens);
  }
}

TEST(Batching, TheQueueIsBoundedFairAndKnowsPriorities) {
  EngineOptions options = serving(draft_path(), 1);
  options.demand.max_queue = 4;
  const auto engine = make(options);
  std::vector<int> order;
  const auto submit = [&](int number, const std::string& client, int priority) {
    Request request = greedy(chat(*engine, "Who are you?"), 2);
    request.client = client;
    request.priority = priority;
    request.on_prompt = [&order, number](std::int64_t done, std::int64_t total) {
      if (done == total) order.push_back(number);
    };
    return engine->submit(std::move(request));
  };
  ASSERT_TRUE(submit(1, "a", 0).ok());
  ASSERT_TRUE(submit(2, "a", 0).ok());
  ASSERT_TRUE(submit(3, "b", 0).ok());
  ASSERT_TRUE(submit(4, "a", 1).ok());
  ASSERT_TRUE(submit(5, "b", 9).ok());
  EXPECT_EQ(submit(6, "b", 9).status().code(), Code::unavailable);
  drain(*engine);
  EXPECT_EQ(order, (std::vector<int>{4, 1, 2, 5, 3})) << "priorities order the requests of one client alone";
}

TEST(Batching, AClientWithManyRequestsLeavesRoomForAnother) {
  const auto engine = make(serving(draft_path(), 2));
  std::vector<std::string> order;
  for (const char* client : {"a", "a", "a", "b"}) {
    Request request = greedy(chat(*engine, "Who are you?"), 3);
    request.client = client;
    request.on_prompt = [&order, client](std::int64_t done, std::int64_t total) {
      if (done == total) order.emplace_back(client);
    };
    ASSERT_TRUE(engine->submit(std::move(request)).ok());
  }
  drain(*engine);
  ASSERT_EQ(order.size(), 4u);
  EXPECT_TRUE(order[0] == "b" || order[1] == "b") << "not behind three of the other's";
}

}  // namespace
}  // namespace millrace::engine

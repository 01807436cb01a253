// Drafts change when tokens come, and nothing else: the same tokens, texts, logits and probabilities as without, for
// whoever guesses and however often that is right.
#include "engine/draft_choice.h"
#include "engine/drafters.h"
#include "engine/ngram_drafter.h"
#include "text/constraint/grammar_constraint.h"
#include "text/constraint/schema.h"

namespace millrace::engine {
namespace {

using namespace test;

std::vector<Request> some_questions(const Engine& engine, std::int64_t most = 60) {
  std::vector<Request> requests;
  for (const char* question : {"Tell me a story about a fox.",
                               "Write JSON for Finn, who is 38 years old and lives in "
                               "Niamey.",
                               "Count to ten.", "Who are you?"})
    requests.push_back(greedy(chat(engine, question), most));
  return requests;
}

EngineOptions four_at_once(const std::string& path) {
  EngineOptions options = roomy(path);
  options.demand.max_sequences = 4;
  options.demand.context_tokens = 256;
  options.kv.share_prefixes = true;
  return options;
}

TEST(Speculation, GreedyAnswersAreTheSame) {
  expect_drafts_to_change_nothing(four_at_once(moe_path()),
                                  [](const Engine& engine) { return some_questions(engine); });
}

TEST(Speculation, DrawnAnswersAreTheSameForEverySeed) {
  expect_drafts_to_change_nothing(four_at_once(draft_path()), [](const Engine& engine) {
    std::vector<Request> requests = some_questions(engine, 80);
    std::uint64_t seed = 10;
    for (Request& request : requests) {
      request.sampler.temperature = 1.1f;
      request.sampler.penalties.repeat = 1.2f;
      request.sampler.penalties.presence = 0.3f;
      request.sampler.seed = ++seed;
      request.logit_bias = {{20, 1.5f}, {300, -2.0f}};
      request.top_logprobs = 3;
    }
    return requests;
  });
}

TEST(Speculation, StopStringsEndAtTheSamePlace) {
  expect_drafts_to_change_nothing(four_at_once(moe_path()), [](const Engine& engine) {
    std::vector<Request> requests = some_questions(engine);
    for (Request& request : requests) request.stop = {" named", "38", "5", "e"};
    return requests;
  });
}

TEST(Speculation, AnswersKeepTheirForm) {
  expect_drafts_to_change_nothing(four_at_once(moe_path()), [](const Engine& engine) {
    const auto trie = text::TokenTrie::make(engine.tokenizer());
    std::vector<Request> requests = some_questions(engine);
    for (Request& request : requests) request.constraint = text::make_constraint(text::json_object_grammar(), trie);
    return requests;
  });
}

TEST(Speculation, WhoLosesItsKvSaysTheSame) {
  EngineOptions options = four_at_once(draft_path());
  options.demand.kv_tokens = 256;
  const MakeRequests requests = [](const Engine& engine) {
    std::vector<Request> all;
    for (std::size_t i = 0; i < 4; ++i) {
      all.push_back(greedy(real_text(engine, 50, 300 * i), 100));
      all.back().ignore_end_tokens = true;
    }
    return all;
  };
  expect_drafts_to_change_nothing(options, requests);
  const auto engine = make(drafting(options, nullptr));
  for (Request& request : requests(*engine)) ASSERT_TRUE(engine->submit(std::move(request)).ok());
  drain(*engine);
  EXPECT_GT(engine->load().preempted, 0u) << "the test is about this";
  engine->drop_shared();
  EXPECT_EQ(engine->load().kv_blocks, 0) << "every block is back";
}

/// Passes of a few rows, few rows of logits: drafts take what room there is.
TEST(Speculation, SmallPassesTakeWhatFits) {
  for (const std::int64_t batch : {4, 5, 9}) {
    EngineOptions options = four_at_once(draft_path());
    options.demand.batch_tokens = batch;
    expect_drafts_to_change_nothing(options, [](const Engine& engine) { return some_questions(engine, 30); });
  }
}

/// Windows, latents, states of every kind: what a pass leaves of a wrong guess is never seen.
TEST(Speculation, EveryKindOfMemoryForgetsWrongGuesses) {
  for (const char* name : {"gemma3", "gemma3n", "llama4", "gpt-oss", "deepseek-v3", "qwen3next", "mamba2", "lfm2",
                           "granitehybrid", "falcon-h1", "jamba", "mamba", "kimi-linear", "qwen4exp"}) {
    SCOPED_TRACE(name);
    EngineOptions options = roomy(std::string(MILLRACE_TEST_DATA "/reference/") + name + ".gguf");
    options.demand.max_sequences = 3;
    options.demand.context_tokens = 256;
    options.kv.share_prefixes = true;
    expect_drafts_to_change_nothing(options, noise);
  }
}

TEST(Speculation, ASessionGoesOnBehindDrafts) {
  for (const char* name : {"gemma3", "gemma3n", "llama4", "qwen3next"}) {
    EngineOptions options = roomy(std::string(MILLRACE_TEST_DATA "/reference/") + name + ".gguf");
    options.demand.context_tokens = 512;
    const auto plain = make(options), engine = make(drafting(options, nullptr));
    const auto expected = plain->new_session(), session = engine->new_session();
    std::vector<TokenId> text(30, 5);
    for (int turn = 0; turn < 4; ++turn) {
      Request request = greedy(text, 41);
      request.ignore_end_tokens = true;
      const Result one = plain->run(request, expected.get()), other = engine->run(request, session.get());
      EXPECT_EQ(one.tokens, other.tokens) << name << " " << turn;
      EXPECT_GT(other.drafted, 0) << name;
      text.insert(text.end(), one.tokens.begin(), one.tokens.end());
      text.push_back(9);
    }
  }
}

TEST(Speculation, ADrafterThatFailsIsLeftBehind) {
  const auto failing = std::make_shared<KnowingDrafter>(right_guess),
             next = std::make_shared<KnowingDrafter>(right_guess);
  const auto plain = make(roomy(draft_path()));
  Request request = greedy(real_text(*plain, 40), 60);
  request.ignore_end_tokens = true;
  const Result expected = plain->run(request);
  for (const auto& drafter : {failing, next}) drafter->learn(request.prompt, expected.tokens);
  failing->fails_at = 3;
  next->fails_at = 2;
  EngineOptions options = drafting(roomy(draft_path()), failing, 3);
  options.speculate.drafters.push_back(next);
  const auto engine = make(options);
  const Result result = engine->run(request);
  EXPECT_EQ(result.tokens, expected.tokens);
  EXPECT_GE(result.drafts_right, 9) << "two passes of the first, one of the second";
  ASSERT_EQ(engine->load().drafts.size(), 3u);
  EXPECT_EQ(engine->load().drafts[1].right, 3u);
  EXPECT_EQ(engine->load().drafts[2].drafter, "ngram") << "who is always there";
}

TEST(Speculation, BenchSaysHowOftenGuessesAreRight) {
  const auto engine = make(drafting(roomy(draft_path()), nullptr, 4));
  for (const double probability : {0.0, 0.8, 1.0}) {
    Request request = greedy(real_text(*engine, 40), 300);
    request.ignore_end_tokens = true;
    request.forced_tokens = real_text(*engine, 300, 9000);
    request.drafts_right = probability;
    const std::vector<TokenId> forced = request.forced_tokens;
    const Result result = engine->run(std::move(request));
    EXPECT_EQ(result.tokens, forced);
    const double tokens = 299.0 / static_cast<double>(result.decode_turns);
    // 1 + p + p^2 + p^3 + p^4
    EXPECT_NEAR(tokens, probability == 0 ? 1 : probability == 1 ? 5 : 3.36, probability == 0.8 ? 0.5 : 0.1);
  }
}

TEST(Speculation, AutomaticLeavesFastPassesAlone) {
  EngineOptions options = roomy(MILLRACE_TEST_DATA "/reference/llama.gguf");
  options.speculate.mode = SpeculateOptions::Mode::automatic;
  const auto engine = make(options);
  Request request = greedy(std::vector<TokenId>(30, 5), 100);
  request.ignore_end_tokens = true;
  EXPECT_EQ(engine->run(std::move(request)).drafted, 0);
}

EngineOptions with_draft_model(EngineOptions options, const std::string& path, std::int64_t drafts = 4) {
  options = drafting(std::move(options), nullptr, drafts);
  options.speculate.draft_model = path;
  return options;
}

TEST(DraftModel, GuessesForTheDemoModelAndChangesNothing) {
  const EngineOptions options = four_at_once(moe_path());
  const auto plain = make(options), engine = make(with_draft_model(options, draft_path()));
  std::vector<Request> requests = some_questions(*plain);
  requests[1].sampler.temperature = 0.9f;
  requests[1].sampler.seed = 4;
  const std::vector<Told> expected = answers(*plain, requests), told = answers(*engine, requests);
  for (std::size_t i = 0; i < told.size(); ++i) EXPECT_TRUE(told[i] == expected[i]) << i;
  const LoadCounters load = engine->load();
  ASSERT_EQ(load.drafts.size(), 1u);
  EXPECT_GT(load.drafts[0].right, load.drafts[0].drafted / 4);
  EXPECT_GT(load.drafts[0].seconds, 0);
}

TEST(DraftModel, OfAModelItselfIsAlwaysRight) {
  for (const char* name : {"/demo-draft-f16.gguf", "/reference/gemma3.gguf", "/reference/lfm2.gguf"}) {
    const std::string path = std::string(MILLRACE_TEST_DATA) + name;
    const auto engine = make(with_draft_model(roomy(path), path));
    Request request = greedy(std::vector<TokenId>(100, 5), 90);
    for (std::size_t i = 0; i < request.prompt.size(); ++i) request.prompt[i] = static_cast<TokenId>(3 + i * i % 70);
    request.ignore_end_tokens = true;
    const Result result = engine->run(request);
    EXPECT_EQ(result.drafts_right, result.drafted) << name;
    EXPECT_GE(result.drafts_right, 60) << name;
    EXPECT_EQ(result.tokens, make(roomy(path))->run(request).tokens) << name;
  }
}

TEST(DraftModel, TakesItsShareOfTheBudget) {
  EngineOptions options = roomy(moe_path());
  options.demand.context_tokens = 512;
  options.memory.ram_bytes = 14'000'000;
  const auto plain = make(options), engine = make(with_draft_model(options, draft_path()));
  EXPECT_LT(engine->budget().cap_bytes(), plain->budget().cap_bytes() - 1'800'000) << "the weights at least";
  const Request request = greedy(chat(*engine, "Tell me a story about a fox."), 60);
  const Result result = engine->run(request);
  EXPECT_EQ(result.tokens, plain->run(request).tokens);
  EXPECT_GT(result.drafts_right, 0);
}

/// A word in the log, and the answer without it.
TEST(DraftModel, WhatCannotGuessDoesNot) {
  const Request request = greedy(chat(*make(roomy(moe_path())), "Who are you?"), 20);
  const std::vector<TokenId> expected = make(roomy(moe_path()))->run(request).tokens;
  const auto answered_without = [&](EngineOptions options, const std::string& draft, const std::string& word) {
    testing::internal::CaptureStderr();
    const auto engine = make(with_draft_model(std::move(options), draft));
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find(word), std::string::npos) << log;
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->run(request).tokens, expected) << word;
    EXPECT_EQ(engine->load().drafts.front().drafter, "ngram") << word;
  };
  answered_without(roomy(moe_path()), "/nowhere.gguf", "nowhere.gguf");
  answered_without(roomy(moe_path()), std::string(MILLRACE_TEST_DATA) + "/reference/llama.gguf", "vocabulary");
  EngineOptions small = roomy(moe_path());
  small.demand.context_tokens = 512;
  small.memory.ram_bytes = 1;
  const std::optional<std::uint64_t> smallest = named_ram(Engine::create(small).status().message());
  ASSERT_TRUE(smallest.has_value());
  small.memory.ram_bytes = *smallest;
  answered_without(small, draft_path(), "does not guess");
}

TEST(NgramDrafter, FindsTheLongestRunAndGoesOnWithItsOwnGuesses) {
  residency::Budget budget(1'000'000);
  NgramDrafter drafter(budget);
  std::uint64_t request = 0;
  using Tokens = std::vector<TokenId>;
  const std::function<Tokens(const Tokens&)> guesses = [&](const Tokens& tokens) {
    DraftAsk ask{.request = ++request, .tokens = tokens, .expected = 100, .most = 4};
    EXPECT_TRUE(drafter.propose({&ask, 1}, {}).ok());
    return ask.guesses;
  };
  EXPECT_EQ(guesses({1, 2, 3, 4}), (std::vector<TokenId>{}));
  EXPECT_EQ(guesses({1, 2, 3, 4, 5, 6, 1, 2}), (std::vector<TokenId>{3, 4, 5, 6}));
  EXPECT_EQ(guesses({1, 2, 3, 9, 5, 2, 3, 8, 1, 2, 3}), (std::vector<TokenId>{9, 5, 2, 3})) << "three agree, not two";
  EXPECT_EQ(guesses({1, 2, 7, 1, 2, 8, 1, 2}), (std::vector<TokenId>{8, 1, 2, 8})) << "the last place counts";
  EXPECT_EQ(guesses({4, 6, 4, 6, 4}), (std::vector<TokenId>{6, 4, 6, 4}));
  for (std::uint64_t one = 1; one <= request; ++one) drafter.forget(one);
  EXPECT_EQ(budget.reserved_bytes(), 0u);
}

TEST(NgramDrafter, GuessesTheSameWhetherTokensComeOneByOneOrAtOnce) {
  residency::Budget budget(10'000'000);
  NgramDrafter one(budget), other(budget);
  std::vector<TokenId> tokens;
  for (std::uint64_t i = 0; i < 600; ++i) {
    tokens.push_back(static_cast<TokenId>((i * i + i / 7) % 11));
    DraftAsk stepwise{.request = 1, .tokens = tokens, .expected = 600, .most = 5};
    DraftAsk whole{.request = i, .tokens = tokens, .expected = 600, .most = 5};
    ASSERT_TRUE(one.propose({&stepwise, 1}, {}).ok() && other.propose({&whole, 1}, {}).ok());
    ASSERT_EQ(stepwise.guesses, whole.guesses) << i;
    other.forget(i);
  }
}

TEST(NgramDrafter, WithoutMemoryThereAreNoGuesses) {
  residency::Budget budget(1000);
  NgramDrafter drafter(budget);
  const std::vector<TokenId> tokens(20, 3);
  DraftAsk ask{.request = 1, .tokens = tokens, .expected = 4000, .most = 4};
  EXPECT_TRUE(drafter.propose({&ask, 1}, {}).ok());
  EXPECT_TRUE(ask.guesses.empty());
}

TEST(DraftChoice, TakesWhatIsWorthItsRows) {
  PassCosts costs;
  std::vector<DraftOdds> odds(2);
  odds[0].all_right = {0.9, 0.8, 0.7};
  odds[1].all_right = {0.5, 0.1};
  for (int i = 0; i < 2; ++i) {
    choose_drafts(costs, 2, 10, odds);
    EXPECT_EQ(odds[0].drafts + odds[1].drafts, 0) << "passes without drafts come first, to compare with";
    costs.measured(2, 0.1);
  }
  for (std::int64_t rows = 1; rows <= 16; ++rows)
    for (int i = 0; i < 2; ++i) costs.measured(rows, 0.1 + 0.001 * static_cast<double>(rows));
  choose_drafts(costs, 2, 10, odds);
  EXPECT_EQ(odds[0].drafts, 3);
  EXPECT_EQ(odds[1].drafts, 2) << "rows cost a hundredth of a pass";
  choose_drafts(costs, 2, 3, odds);
  EXPECT_EQ(odds[0].drafts, 3) << "the likelier ones, where there is room for three";
  EXPECT_EQ(odds[1].drafts, 0);
  PassCosts dear;
  for (std::int64_t rows = 1; rows <= 16; ++rows)
    for (int i = 0; i < 2; ++i) dear.measured(rows, 0.1 * static_cast<double>(rows));
  choose_drafts(dear, 2, 10, odds);
  EXPECT_EQ(odds[0].drafts + odds[1].drafts, 0) << "each row costs a pass";
}

TEST(DraftChoice, CostsAreWhatPassesTook) {
  PassCosts costs;
  EXPECT_EQ(costs.of(3), 0);
  costs.measured(4, 9);  // prepares something
  costs.measured(4, 2);
  costs.measured(4, 3);
  EXPECT_NEAR(costs.of(4), 2, 0.01);
  EXPECT_NEAR(costs.of(8), 2, 0.01) << "as the next ones below: they are tried";
  EXPECT_GT(costs.of(9), 100) << "but not too many more at once";
  EXPECT_NEAR(costs.of(1), 2, 0.01);
  for (int i = 0; i < 60; ++i) costs.measured(4, 6);
  EXPECT_NEAR(costs.of(4), 6, 0.1);
  costs.measured(8, 20);
  EXPECT_NEAR(costs.of(8), 6, 0.1) << "once is not sure: it may have prepared something";
  costs.measured(8, 14);
  EXPECT_NEAR(costs.of(8), 14, 0.1);
  EXPECT_NEAR(costs.of(6), 10, 0.1) << "between the two";
  EXPECT_NEAR(costs.of(12), 18, 0.1) << "two a row led to eight: one a row is hoped for";
  for (int i = 0; i < 20000; ++i) costs.measured(4, 6);
  EXPECT_LT(costs.of(8), 9) << "long ago";
}

TEST(DraftChoice, WhatWasPredictedIsAsFarOffAsWhatWasMeasured) {
  std::vector<double> predicted;
  for (std::int64_t rows = 1; rows <= PassCosts::kMostRows; ++rows)
    predicted.push_back(rows <= 8 ? 1 : 0.25 * static_cast<double>(rows));
  PassCosts costs(predicted);
  EXPECT_DOUBLE_EQ(costs.of(8), 1) << "before anything was measured";
  PassCosts slow(predicted);
  slow.measured(8, 5);
  EXPECT_DOUBLE_EQ(slow.of(4), 1) << "fewer rows may be as fast as predicted";
  costs.measured(1, 3);
  EXPECT_DOUBLE_EQ(costs.of(8), 3) << "passes take three times as much here";
  EXPECT_DOUBLE_EQ(costs.of(16), 12);
  costs.measured(1, 3);
  costs.measured(8, 6);
  costs.measured(8, 6);
  EXPECT_NEAR(costs.of(8), 6, 0.01) << "as measured";
  EXPECT_NEAR(costs.of(4), 3 + 3 * 3.0 / 7, 0.01) << "between the two";
  EXPECT_NEAR(costs.of(16), 24, 0.1) << "six times what was predicted, as of eight";
  costs.measured(16, 8);
  EXPECT_NEAR(costs.of(9), 2.25 * (6 - 4.0 / 8), 0.1) << "a step that was predicted stays one between two";
}

TEST(DraftChoice, AcceptanceFollowsWhatComes) {
  Acceptance acceptance;
  EXPECT_DOUBLE_EQ(acceptance.probability(0, 0.3), 0.3);
  for (int i = 0; i < 200; ++i) acceptance.record(0, true);
  EXPECT_GT(acceptance.probability(0, 0.3), 0.9);
  for (int i = 0; i < 200; ++i) acceptance.record(0, false);
  EXPECT_LT(acceptance.probability(0, 0.3), 0.1);
}

TEST(SpeculateOptions, AreReadAsTheyAreWritten) {
  EXPECT_EQ(parse_speculation("off")->mode, SpeculateOptions::Mode::off);
  EXPECT_EQ(parse_speculation("auto")->mode, SpeculateOptions::Mode::automatic);
  EXPECT_EQ(parse_speculation("5")->drafts, 5);
  for (const char* wrong : {"", "0", "-1", "5x", "1000", "on"})
    EXPECT_EQ(parse_speculation(wrong).status().code(), Code::invalid_argument) << wrong;
}

}  // namespace
}  // namespace millrace::engine

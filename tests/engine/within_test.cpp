// Parts of the model guess, its first layers or the block behind them: the same tokens and logits as without, wherever
// weights lie, and nothing read from the disk for a guess.
#include "engine/scheduler.h"
#include "engine/self_drafter.h"
#include "engine/within_checks.h"
#include "text/constraint/grammar_constraint.h"
#include "text/constraint/schema.h"

namespace millrace::engine {
namespace {

using namespace test;

TEST(SelfDraft, ChangesNoAnswerOfAResidentModel) {
  for (const char* who : {"self:1", "self:3", "self:5"}) {
    SCOPED_TRACE(who);
    expect_no_change(several(moe_path()), who, questions);
  }
}

TEST(SelfDraft, ChangesNoAnswerOfAStreamedModel) {
  EngineOptions options = several(moe_path());
  for (const std::uint64_t ram : {6'500'000, 9'000'000}) {
    options.memory.ram_bytes = ram;
    SCOPED_TRACE(ram);
    expect_no_change(options, "self:1", questions, true);
  }
  options = several(draft_path());
  options.memory.ram_bytes = 2'800'000;  // of 3,000,000 it sometimes all fits, by what the program took before
  expect_no_change(options, "self:1", questions, true);
}

TEST(SelfDraft, AnswersKeepTheirForm) {
  expect_no_change(several(moe_path()), "self:3", [](const Engine& engine) {
    const auto trie = text::TokenTrie::make(engine.tokenizer());
    std::vector<Request> requests = questions(engine);
    for (Request& request : requests) request.constraint = text::make_constraint(text::json_object_grammar(), trie);
    return requests;
  });
}

TEST(SelfDraft, WindowsAndLatentsForgetGuesses) {
  for (const char* name : {"gemma3", "gemma3n", "llama4", "gpt-oss", "deepseek-v3", "llama"}) {
    SCOPED_TRACE(name);
    expect_no_change(several(reference(name)), "self:1", noise);
  }
}

TEST(SelfDraft, WhoLosesItsKvSaysTheSame) {
  expect_no_change_by_preemption(several(moe_path()), "self:2", [](const Engine& engine) {
    std::vector<Request> all;
    for (std::size_t i = 0; i < 4; ++i) {
      all.push_back(greedy(real_text(engine, 50, 300 * i), 100));
      all.back().ignore_end_tokens = true;
    }
    return all;
  });
}

TEST(SelfDraft, ASessionGoesOnBehindGuesses) { expect_same_session(of_512(reference("gemma3")), "self:1"); }

TEST(SelfDraft, GoesOnFromPromptsOfTheDisk) { expect_same_of_restored(of_512(moe_path()), "self:2"); }

/// All of a model's layers over the request's KV guess what it will say.
TEST(SelfDraft, OfAllLayersIsAlwaysRight) {
  for (const std::string& path : {moe_path(), reference("gemma3"), reference("deepseek-v3")}) {
    EngineOptions options = roomy(path);
    options.demand.context_tokens = 512;
    Expected<Parts> parts = assemble(options);
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    auto drafter = SelfDrafter::make(parts->model->program().layer_count(), *parts);
    ASSERT_TRUE(drafter.ok()) << drafter.status().message();
    SpeculateOptions speculate = drafting(options, nullptr, 5).speculate;
    speculate.drafters.push_back(std::move(*drafter));
    Scheduler scheduler(*parts, speculate);
    std::vector<TokenId> prompt(100, 5);
    for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(3 + i * i % 70);
    Request request = greedy(prompt, 90);
    request.ignore_end_tokens = true;
    const auto id = scheduler.submit(std::move(request), std::make_shared<Conversation>(parts->kv_pool));
    ASSERT_TRUE(id.ok());
    while (scheduler.step()) {
    }
    const Result result = scheduler.take(*id);
    EXPECT_EQ(result.drafts_right, result.drafted) << path;
    EXPECT_GE(result.drafts_right, 70) << path;
  }
}

/// Where weights stream, the layers that guess stay, however KV grows.
TEST(SelfDraft, ReadsNothingForAGuess) {
  EngineOptions options = roomy(moe_path());
  options.demand.context_tokens = 1024;
  options.memory.ram_bytes = 10'000'000;
  const auto engine = make(within(options, "self"));
  const int layers = engine->plan().front_layers;
  EXPECT_GE(layers, 1);
  EXPECT_LT(layers, 6);
  EXPECT_EQ(engine->draft_seat().place, DraftPlace::cpu);
  Request request = greedy(real_text(*engine, 300), 700);
  request.ignore_end_tokens = true;
  const Result result = engine->run(std::move(request));
  EXPECT_EQ(std::ssize(result.tokens), 700) << result.status.message();
  EXPECT_GT(result.drafted, 0);
  const residency::UnitTable& units = engine->model().units();
  for (std::size_t t = 0; t < units.tiles().size(); ++t)
    if (residency::in_front(units.units()[static_cast<std::size_t>(units.tiles()[t].unit)], layers)) {
      EXPECT_TRUE(engine->store().present(static_cast<std::int32_t>(t))) << t;
    }
}

TEST(SelfDraft, BenchSaysHowOftenGuessesAreRight) { expect_right_as_told(within(roomy(moe_path()), "self:2")); }

TEST(SelfDraft, WhatCannotGuessDoesNot) {
  expect_left_out(roomy(reference("qwen3next")), "self:1", "state");
  expect_left_out(roomy(moe_path()), "self:6", "has 6 layers");
  expect_left_out(roomy(moe_path()), "self", "self:K insists");
  EngineOptions small = roomy(moe_path());
  small.demand.context_tokens = 512;
  small.memory.ram_bytes = ram_above_smallest(small, 1.15);
  expect_left_out(small, "self:5", "the first 5 layers");
}

TEST(SelfDraft, IsReadAsItIsWritten) {
  SpeculateOptions options;
  ASSERT_TRUE(read_draft("self", options).ok());
  EXPECT_EQ(options.within, Within::self);
  EXPECT_EQ(options.self_layers, 0);
  ASSERT_TRUE(read_draft("self:12", options).ok());
  EXPECT_EQ(options.self_layers, 12);
  EXPECT_TRUE(options.draft_model.empty());
  ASSERT_TRUE(read_draft("mtp", options).ok());
  EXPECT_EQ(options.within, Within::mtp);
  EXPECT_EQ(options.self_layers, 0);
  for (const char* file : {"./self", "./mtp", "mtp.gguf", "selfish.gguf", "self.gguf"}) {
    ASSERT_TRUE(read_draft(file, options).ok());
    EXPECT_EQ(options.within, Within::none);
    EXPECT_EQ(options.draft_model, file);
  }
  for (const char* wrong : {"self:", "self:0", "self:-1", "self:x", "self:2x", "self:99999999999"})
    EXPECT_EQ(read_draft(wrong, options).code(), Code::invalid_argument) << wrong;
}

const char* const kWithBlocks[] = {"glm4moe", "glm-4.7-flash", "qwen35moe"};

TEST(MtpDraft, ChangesNoAnswer) {
  for (const char* name : kWithBlocks) {
    SCOPED_TRACE(name);
    expect_no_change(several(reference(name)), "mtp", noise);
    EngineOptions streamed = several(reference(name));
    streamed.memory.exact_budget = true;  // the plan is the same whatever the program took before
    streamed.memory.ram_bytes = ram_above_smallest(within(streamed, "mtp"), 1.0);
    streamed.experts.prefetch = exec::Prefetch::off;  // what it reads depends on how long passes take
    expect_no_change(streamed, "mtp", noise, true);
  }
}

TEST(MtpDraft, WhoLosesItsKvSaysTheSame) {
  for (const char* name : kWithBlocks) {
    SCOPED_TRACE(name);
    expect_no_change_by_preemption(several(reference(name)), "mtp", [](const Engine& engine) {
      std::vector<Request> requests = noise(engine);
      for (Request& request : requests) request.max_tokens = 100;
      return requests;
    });
  }
}

TEST(MtpDraft, GoesOnFromWhatOthersComputed) {
  for (const char* name : kWithBlocks) {
    SCOPED_TRACE(name);
    expect_same_session(of_512(reference(name)), "mtp");
    expect_same_of_restored(of_512(reference(name)), "mtp");
  }
}

/// Is told what passes computed, and checks it; guesses what it knows.
class ListeningDrafter final : public Drafter {
 public:
  explicit ListeningDrafter(std::shared_ptr<KnowingDrafter> guesses) : guesses_(std::move(guesses)) {}
  std::string_view name() const override { return "listening"; }
  bool is_free() const override { return true; }
  bool wants_states() const override { return true; }
  Status passed(std::span<const Computed> computed, const exec::Executor& executor) override {
    if (++passes_ == fails_at) return error(Code::io_error, "told to fail");
    for (const Computed& one : computed) {
      EXPECT_GE(one.rows, 0);
      EXPECT_LT(one.first + one.rows, std::ssize(one.tokens)) << "a token stands behind each";
      auto& seen = seen_[one.request];
      EXPECT_LE(one.first, std::ssize(seen)) << "no row is left out";
      seen.resize(static_cast<std::size_t>(one.first));
      std::vector<float> states(64 * 512);
      for (std::int64_t i = 0; i < one.rows; ++i) {
        EXPECT_TRUE(executor.read_hidden(one.first_row + i, 1, states.data()).ok());
        seen.push_back(one.tokens[static_cast<std::size_t>(one.first + i)]);
      }
      most_ = std::max(most_, std::ssize(seen));
    }
    return {};
  }
  Status propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) override {
    for (const DraftAsk& ask : asks) {
      const auto& seen = seen_.at(ask.request);
      EXPECT_EQ(std::ssize(seen) + 1, std::ssize(ask.tokens)) << "all but the last token";
      EXPECT_TRUE(std::equal(seen.begin(), seen.end(), ask.tokens.begin()));
    }
    return guesses_->propose(asks, stop);
  }
  void accepted(std::uint64_t request, std::int64_t drafted, std::int64_t right) override {
    guesses_->accepted(request, drafted, right);
  }
  void forget(std::uint64_t request) override { seen_.erase(request); }

  int fails_at = 0;
  std::ptrdiff_t most() const { return most_; }

 private:
  std::shared_ptr<KnowingDrafter> guesses_;
  std::map<std::uint64_t, std::vector<TokenId>> seen_;
  int passes_ = 0;
  std::ptrdiff_t most_ = 0;
};

TEST(Drafters, AreToldOfEveryRowThatStays) {
  for (const char* name : {"llama", "qwen3next", "gemma3"}) {
    for (const int fails_at : {0, 5}) {
      SCOPED_TRACE(testing::Message() << name << ", fails at " << fails_at);
      EngineOptions options = several(reference(name));
      options.kv.share_prefixes = false;
      options.demand.kv_tokens = 256;
      const auto plain = make(options);
      const std::vector<Request> requests = noise(*plain);
      const std::vector<Told> expected = answers(*plain, noise(*plain));
      const auto knowing = std::make_shared<KnowingDrafter>(mixed_guess);
      for (std::size_t i = 0; i < requests.size(); ++i) knowing->learn(requests[i].prompt, expected[i].tokens);
      const auto listening = std::make_shared<ListeningDrafter>(knowing);
      listening->fails_at = fails_at;
      const auto engine = make(drafting(options, listening));
      const std::vector<Told> told = answers(*engine, noise(*engine));
      for (std::size_t i = 0; i < told.size(); ++i) EXPECT_TRUE(told[i] == expected[i]) << i;
      if (fails_at == 0) {
        EXPECT_GE(listening->most(), 150);
        EXPECT_GT(knowing->taken, 0);
      }
      EXPECT_EQ(engine->load().drafts.back().drafter, fails_at == 0 ? "listening" : "ngram");
    }
  }
}

TEST(MtpDraft, BenchSaysHowOftenGuessesAreRight) { expect_right_as_told(within(roomy(reference("glm4moe")), "mtp")); }

TEST(MtpDraft, ItsBlockIsAtHomeAndPaid) {
  EngineOptions options = roomy(reference("glm4moe"));
  options.demand.context_tokens = 256;
  const auto plain = plan_only(options), planned = plan_only(within(options, "mtp"));
  ASSERT_TRUE(plain.ok() && planned.ok()) << planned.status().message();
  EXPECT_EQ(plain->draft_blocks, 1);
  EXPECT_EQ(planned->draft_blocks, 0);
  EXPECT_EQ(planned->draft.place, DraftPlace::cpu);
  EXPECT_NE(planned->draft.words.find("the block behind the layers"), std::string::npos) << planned->draft.words;
  EXPECT_GE(planned->plan.resident_bytes, plain->plan.resident_bytes + plain->draft_block_bytes);
  EXPECT_GE(planned->plan.fixed_bytes, plain->plan.fixed_bytes + planned->draft.ram_bytes);
}

TEST(MtpDraft, WhatCannotGuessDoesNot) {
  expect_left_out(roomy(reference("llama")), "mtp", "no block that was trained");
  expect_left_out(roomy(reference("qwen35")), "mtp", "no block that was trained");
  EngineOptions small = roomy(reference("glm4moe"));
  small.demand.context_tokens = 256;
  small.memory.ram_bytes = ram_above_smallest(small, 1.0);
  expect_left_out(small, "mtp", "does not fit");
}

}  // namespace
}  // namespace millrace::engine

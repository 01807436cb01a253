// Parts of the model guess, its first layers or the block behind them: the same tokens and logits as without, wherever
// weights lie, and nothing read from the disk for a guess.
#include <unistd.h>

#include <filesystem>

#include "engine/drafters.h"
#include "engine/scheduler.h"
#include "engine/self_drafter.h"
#include "text/constraint/grammar_constraint.h"
#include "text/constraint/schema.h"

namespace millrace::engine {
namespace {

using namespace test;

/// `who`: as --draft has it.
EngineOptions within(EngineOptions options, const std::string& who, std::int64_t drafts = 4) {
  options = drafting(std::move(options), nullptr, drafts);
  EXPECT_TRUE(read_draft(who, options.speculate).ok());
  return options;
}

EngineOptions several(const std::string& path) {
  EngineOptions options = roomy(path);
  options.max_sequences = 3;
  options.context_tokens = 256;
  options.share_prefixes = true;
  return options;
}

std::string reference(const std::string& name) { return MILLRACE_TEST_DATA "/reference/" + name + ".gguf"; }

/// The smallest budget that a model of these options runs under, and so much more.
std::uint64_t ram_above_smallest(EngineOptions options, double factor) {
  options.ram_bytes = 1;
  const std::optional<std::uint64_t> smallest = named_ram(plan_only(options).status().message());
  EXPECT_TRUE(smallest.has_value());
  return static_cast<std::uint64_t>(static_cast<double>(smallest.value_or(0)) * factor);
}

std::vector<Request> questions(const Engine& engine) {
  std::vector<Request> requests;
  for (const char* question :
       {"Tell me a story about a fox.", "Write JSON for Finn, who is 38 years old and lives in Niamey.",
        "Count to ten.", "Tell me a story about a fox."})
    requests.push_back(greedy(chat(engine, question), 60));
  requests[2].sampler.temperature = 1.1f;
  requests[2].sampler.seed = 7;
  requests[2].sampler.repeat_penalty = 1.2f;
  requests[3].stop = {" named"};
  return requests;
}

/// Prompts of several lengths, one of them drawn, for models that say nothing.
std::vector<Request> noise(const Engine& engine) {
  const std::int64_t vocab = engine.model().hyperparameters().vocab;
  std::vector<Request> requests;
  for (std::int64_t r = 0; r < 3; ++r) {
    std::vector<TokenId> prompt;
    for (std::int64_t i = 0; i < 20 + 37 * r; ++i)
      prompt.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31 + r) % (vocab - 3)));
    requests.push_back(greedy(std::move(prompt), 90));
    requests.back().ignore_end_tokens = true;
    if (r == 2) requests.back().sampler.temperature = 0.9f;
  }
  return requests;
}

void expect_no_change(const EngineOptions& options, const std::string& who, const MakeRequests& make_requests,
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
  EXPECT_EQ(load.drafts[0].drafter,
            who == "mtp" ? who : fmt::format("self {} layer{}", layers, layers == 1 ? "" : "s"));
  EXPECT_GT(load.drafts[0].drafted, 0u);
  EXPECT_EQ(plain->load().drafts.size(), 0u);
  if (streams) {
    EXPECT_GT(engine->store().counters().bytes_from_disk, engine->model().units().total_bytes());
  }
  engine->drop_shared();
  EXPECT_EQ(engine->load().kv_blocks, 0) << "every block is back";
}

TEST(SelfDraft, ChangesNoAnswerOfAResidentModel) {
  for (const char* who : {"self:1", "self:3", "self:5"}) {
    SCOPED_TRACE(who);
    expect_no_change(several(moe_path()), who, questions);
  }
}

TEST(SelfDraft, ChangesNoAnswerOfAStreamedModel) {
  EngineOptions options = several(moe_path());
  for (const std::uint64_t ram : {6'500'000, 9'000'000}) {
    options.ram_bytes = ram;
    SCOPED_TRACE(ram);
    expect_no_change(options, "self:1", questions, true);
  }
  options = several(draft_path());
  options.ram_bytes = 3'000'000;
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
  for (const char* name : {"gemma3", "gpt-oss", "deepseek-v3", "llama"}) {
    SCOPED_TRACE(name);
    expect_no_change(several(reference(name)), "self:1", noise);
  }
}

void expect_no_change_by_preemption(EngineOptions options, const std::string& who, const MakeRequests& requests) {
  options.kv_tokens = 256;
  expect_no_change(options, who, requests);
  const auto engine = make(within(options, who));
  for (Request& request : requests(*engine)) ASSERT_TRUE(engine->submit(std::move(request)).ok());
  drain(*engine);
  EXPECT_GT(engine->load().preempted, 0u) << "the test is about this";
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

void expect_same_session(const std::string& path, const std::string& who) {
  EngineOptions options = roomy(path);
  options.context_tokens = 512;
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

TEST(SelfDraft, ASessionGoesOnBehindGuesses) { expect_same_session(reference("gemma3"), "self:1"); }

/// Prompts that the disk remembers: a drafter goes on from them.
void expect_same_of_restored(const std::string& path, const std::string& who) {
  const auto folder = std::filesystem::temp_directory_path() / ("within-prompts-" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  EngineOptions options = roomy(path);
  options.context_tokens = 512;
  options.share_prefixes = true;
  const std::int64_t vocab = make(options)->model().hyperparameters().vocab;
  std::vector<TokenId> prompt;
  for (std::int64_t i = 0; i < 200; ++i) prompt.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31) % (vocab - 3)));
  Request request = greedy(prompt, 60);
  request.ignore_end_tokens = true;
  const Result expected = make(options)->run(request);
  options.prompt_cache = folder.string();
  options.prompt_cache_seconds = 0;
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

TEST(SelfDraft, GoesOnFromPromptsOfTheDisk) { expect_same_of_restored(moe_path(), "self:2"); }

/// All of a model's layers over the request's KV guess what it will say.
TEST(SelfDraft, OfAllLayersIsAlwaysRight) {
  for (const std::string& path : {moe_path(), reference("gemma3"), reference("deepseek-v3")}) {
    EngineOptions options = roomy(path);
    options.context_tokens = 512;
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
  options.context_tokens = 1024;
  options.ram_bytes = 10'000'000;
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

void expect_right_as_told(const EngineOptions& options) {
  const auto engine = make(options);
  Request request = greedy(std::vector<TokenId>(40, 5), 300);
  request.ignore_end_tokens = true;
  for (TokenId i = 0; i < 300; ++i) request.forced_tokens.push_back(3 + i * i % 70);
  request.drafts_right = 0.8;
  const Result result = engine->run(std::move(request));
  EXPECT_NEAR(299.0 / static_cast<double>(result.decode_turns), 3.36, 0.5) << "1 + p + p^2 + p^3 + p^4";
  EXPECT_GT(engine->load().drafts[0].seconds, 0);
}

TEST(SelfDraft, BenchSaysHowOftenGuessesAreRight) { expect_right_as_told(within(roomy(moe_path()), "self:2")); }

/// A word in the log, and the answer without it.
void expect_left_out(EngineOptions options, const std::string& who, const std::string& word) {
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

TEST(SelfDraft, WhatCannotGuessDoesNot) {
  expect_left_out(roomy(reference("qwen3next")), "self:1", "state");
  expect_left_out(roomy(moe_path()), "self:6", "has 6 layers");
  expect_left_out(roomy(moe_path()), "self", "self:K insists");
  EngineOptions small = roomy(moe_path());
  small.context_tokens = 512;
  small.ram_bytes = ram_above_smallest(small, 1.15);
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
    streamed.ram_bytes = ram_above_smallest(within(streamed, "mtp"), 1.02);
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
    expect_same_session(reference(name), "mtp");
    expect_same_of_restored(reference(name), "mtp");
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
      options.share_prefixes = false;
      options.kv_tokens = 256;
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
  options.context_tokens = 256;
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
  small.context_tokens = 256;
  small.ram_bytes = ram_above_smallest(small, 1.0);
  expect_left_out(small, "mtp", "does not fit");
}

}  // namespace
}  // namespace millrace::engine

// Low-bit copies of layers that stream guess: the same tokens and logits as without, nothing read from the disk for a
// guess, and nothing of them where no layer streams.
#include "engine/substitute_file.h"
#include "engine/within_checks.h"
#include "residency/substitutes.h"
#include "text/constraint/grammar_constraint.h"
#include "text/constraint/schema.h"

namespace millrace::engine {
namespace {

using namespace test;

/// Tiles so small that a ring of them takes less than the smallest models' substitutes save.
EngineOptions streamed(EngineOptions options) {
  options.tile_bytes = 8 * kKiB;
  return options;
}

constexpr std::uint64_t kStep = 16 * kKiB;

/// The least budget, in steps, under which substitutes guess.
std::uint64_t least_ram(EngineOptions options, const std::string& who) {
  options = within(std::move(options), who);
  std::string last;
  for (options.ram_bytes = ram_above_smallest(options, 1);; options.ram_bytes += kStep) {
    const auto planned = plan_only(options);
    if (!planned.ok()) continue;
    if (planned->draft.place == DraftPlace::cpu) return options.ram_bytes;
    if (planned->draft.words.starts_with("all weights")) break;
    last = planned->draft.words;
  }
  ADD_FAILURE() << "under no budget: " << last;
  return 200'000'000;
}

/// Units of a plan's drafter that are substitutes, and such that are not.
struct Front {
  int substitutes = 0, own = 0;
};
Front front_of(const Engine& engine) {
  Front front;
  const auto& units = engine.model().units().units();
  for (std::size_t u = 0; u < engine.plan().front.size(); ++u)
    if (engine.plan().front[u] && units[u].layer >= 0) ++(units[u].substitute_of >= 0 ? front.substitutes : front.own);
  return front;
}

TEST(SubstituteDraft, ChangesNoAnswerOfADenseModel) {
  const SubstituteFile file(draft_path());
  EngineOptions options = streamed(several(draft_path()));
  const std::uint64_t least = least_ram(options, file.who());
  for (const double factor : {1.0, 1.1}) {
    options.ram_bytes = static_cast<std::uint64_t>(static_cast<double>(least) * factor);
    SCOPED_TRACE(options.ram_bytes);
    expect_no_change(options, file.who(), questions, true);
  }
}

TEST(SubstituteDraft, ChangesNoAnswerOfAMixture) {
  const SubstituteFile file(moe_path(), modelfile::QuantizeType::q4_0);
  EngineOptions options = streamed(several(moe_path()));
  options.ram_bytes = least_ram(options, file.who());
  const Front front = front_of(*make(within(options, file.who())));
  EXPECT_GT(front.substitutes, 0);
  EXPECT_GT(front.own, 0) << "what has no smaller copy, too";
  expect_no_change(options, file.who(), questions);
}

TEST(SubstituteDraft, AnswersKeepTheirForm) {
  const SubstituteFile file(draft_path());
  EngineOptions options = streamed(several(draft_path()));
  options.ram_bytes = least_ram(options, file.who());
  expect_no_change(options, file.who(), [](const Engine& engine) {
    const auto trie = text::TokenTrie::make(engine.tokenizer());
    std::vector<Request> requests = questions(engine);
    for (Request& request : requests) request.constraint = text::make_constraint(text::json_object_grammar(), trie);
    return requests;
  });
}

TEST(SubstituteDraft, WhoLosesItsKvSaysTheSame) {
  const SubstituteFile file(draft_path());
  EngineOptions options = streamed(several(draft_path()));
  options.kv_tokens = 256;
  options.ram_bytes = least_ram(options, file.who());
  expect_no_change_by_preemption(options, file.who(), [](const Engine& engine) {
    std::vector<Request> all;
    for (std::size_t i = 0; i < 4; ++i) {
      all.push_back(greedy(real_text(engine, 50, 300 * i), 100));
      all.back().ignore_end_tokens = true;
    }
    return all;
  });
}

TEST(SubstituteDraft, ASessionAndAPromptOfTheDiskGoOn) {
  const SubstituteFile file(draft_path());
  EngineOptions options = streamed(of_512(draft_path()));
  options.ram_bytes = least_ram(options, file.who());
  expect_same_session(options, file.who());
  expect_same_of_restored(options, file.who());
}

/// Copies of the same bits guess what the model says.
TEST(SubstituteDraft, TheBetterTheCopyTheMoreIsRight) {
  std::map<modelfile::QuantizeType, double> right;
  for (const auto type : {modelfile::QuantizeType::q4_0, modelfile::QuantizeType::q8_0}) {
    const SubstituteFile file(draft_path(), type);
    EngineOptions options = streamed(roomy(draft_path()));
    options.context_tokens = 256;
    options.ram_bytes = least_ram(options, file.who());
    const auto engine = make(within(options, file.who()));
    for (const char* question : {"Tell me a story about a fox.", "Tell me a story about a bear."})
      engine->run(greedy(chat(*engine, question), 100));
    const DraftCounters drafts = engine->load().drafts.front();
    right[type] = static_cast<double>(drafts.right) / static_cast<double>(drafts.drafted);
  }
  EXPECT_GT(right[modelfile::QuantizeType::q4_0], 0.5);
  EXPECT_GT(right[modelfile::QuantizeType::q8_0], 0.9);
}

/// What guesses stays, however KV grows, and what streams is still read once a pass.
TEST(SubstituteDraft, ReadsNothingForAGuess) {
  const SubstituteFile file(draft_path());
  EngineOptions options = streamed(roomy(draft_path()));
  options.context_tokens = 1024;
  options.ram_bytes = least_ram(options, file.who());
  const auto engine = make(within(options, file.who()));
  ASSERT_EQ(engine->draft_seat().place, DraftPlace::cpu);
  const Front front = front_of(*engine);
  EXPECT_GT(front.substitutes, 0);
  Request request = greedy(real_text(*engine, 300), 700);
  request.ignore_end_tokens = true;
  const Result result = engine->run(std::move(request));
  EXPECT_EQ(std::ssize(result.tokens), 700) << result.status.message();
  EXPECT_GT(result.drafted, 0);
  const residency::UnitTable& units = engine->model().units();
  for (std::size_t t = 0; t < units.tiles().size(); ++t) {
    const auto unit = static_cast<std::size_t>(units.tiles()[t].unit);
    EXPECT_TRUE(!engine->plan().front[unit] || engine->store().present(static_cast<std::int32_t>(t))) << t;
    EXPECT_TRUE(engine->plan().front[unit] || !units.units()[unit].aside ||
                !engine->store().present(static_cast<std::int32_t>(t)))
        << t;
  }
}

/// With more memory fewer layers have substitutes, and at last none.
TEST(SubstituteDraft, OfThoseLayersAloneThatStream) {
  const SubstituteFile file(draft_path());
  EngineOptions options = streamed(roomy(draft_path()));
  options.context_tokens = 256;
  options = within(options, file.who());
  int before = 1000;
  options.ram_bytes = least_ram(options, file.who());
  for (;; options.ram_bytes += kStep) {
    const auto engine = make(options);
    ASSERT_NE(engine, nullptr);
    if (engine->draft_seat().place == DraftPlace::none) {
      EXPECT_NE(engine->draft_seat().words.find("all weights stay in memory"), std::string::npos);
      EXPECT_EQ(engine->plan().front_layers, 0);
      EXPECT_FALSE(residency::has_substitutes(engine->model().units()));
      break;
    }
    const Front front = front_of(*engine);
    EXPECT_LE(front.substitutes, before) << options.ram_bytes;
    EXPECT_EQ(front.substitutes + front.own, engine->model().hyperparameters().layers);
    before = front.substitutes;
    EXPECT_LE(engine->budget().reserved_bytes(), options.ram_bytes);
  }
}

/// A plan that is kept is one without them, for whoever follows it.
TEST(SubstituteDraft, APlanOnPaperHasNone) {
  const SubstituteFile file(draft_path());
  EngineOptions options = streamed(roomy(draft_path()));
  options.context_tokens = 256;
  options.ram_bytes = least_ram(options, file.who());
  const auto planned = plan_only(within(options, file.who()));
  ASSERT_TRUE(planned.ok());
  options.follow = std::make_shared<const residency::SavedPlan>(planned->saved);
  expect_left_out(options, file.who(), "a saved plan");
}

TEST(SubstituteDraft, WherePassesAreFasterWithoutThereAreNone) {
  const SubstituteFile file(draft_path());
  EngineOptions options = streamed(several(draft_path()));
  options.ram_bytes = least_ram(options, file.who());
  options.rates = {.disk = 3e9, .ram = 20e9, .cpu_decode = 15e9, .cpu_prefill_macs = 1e12, .machine = "a test"};
  options = within(options, file.who());
  options.speculate.mode = SpeculateOptions::Mode::automatic;
  options.speculate.drafts = 0;
  options.speculate.acceptance = 0.9;
  const auto good = plan_only(options);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->draft.place, DraftPlace::cpu) << good->draft.words;
  EXPECT_NE(good->draft.words.find("predicted, if 90 % of guesses are right"), std::string::npos) << good->draft.words;
  options.speculate.acceptance = 0;
  const auto bad = plan_only(options);
  ASSERT_TRUE(bad.ok());
  EXPECT_EQ(bad->draft.place, DraftPlace::none);
  EXPECT_NE(bad->draft.words.find("tok/s are predicted with them"), std::string::npos) << bad->draft.words;
}

TEST(SubstituteDraft, WhatCannotGuessDoesNot) {
  const SubstituteFile file(draft_path()), foreign(reference("llama")), states(reference("qwen3next"));
  expect_left_out(roomy(draft_path()), file.who(), "none is needed");
  EngineOptions small = streamed(several(draft_path()));
  small.ram_bytes = least_ram(small, file.who());
  expect_left_out(small, foreign.who(), "is stale");
  expect_left_out(small, "substitute:/nowhere", "/nowhere");
  expect_left_out(small, "substitute", "demo-draft-f16.gguf.substitute");
  expect_left_out(small, "substitute:" + draft_path(), "is no substitute");
  EngineOptions hybrid = roomy(reference("qwen3next"));
  hybrid.context_tokens = 256;
  hybrid.ram_bytes = ram_above_smallest(hybrid, 1.02);
  expect_left_out(hybrid, states.who(), "state");
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1000}, std::filesystem::file_size(file.path()) - 1}) {
    const SubstituteFile damaged(draft_path());
    std::filesystem::resize_file(damaged.path(), bytes);
    expect_left_out(small, damaged.who(), damaged.path());
  }
  small.ram_bytes = ram_above_smallest(small, 1.0);
  expect_left_out(small, file.who(), "give at least --ram");
}

TEST(SubstituteDraft, BenchSaysHowOftenGuessesAreRight) {
  const SubstituteFile file(draft_path());
  EngineOptions options = streamed(of_512(draft_path()));
  options.ram_bytes = least_ram(options, file.who());
  expect_right_as_told(within(options, file.who()));
}

TEST(SubstituteDraft, IsReadAsItIsWritten) {
  SpeculateOptions options;
  ASSERT_TRUE(read_draft("substitute", options).ok());
  EXPECT_EQ(options.within, Within::substitutes);
  EXPECT_TRUE(options.substitutes.empty() && options.draft_model.empty());
  ASSERT_TRUE(read_draft("substitute:a b.sub", options).ok());
  EXPECT_EQ(options.within, Within::substitutes);
  EXPECT_EQ(options.substitutes, "a b.sub");
  ASSERT_TRUE(read_draft("substitute.gguf", options).ok());
  EXPECT_EQ(options.within, Within::none);
  EXPECT_EQ(options.draft_model, "substitute.gguf");
  EXPECT_TRUE(options.substitutes.empty());
  EXPECT_EQ(read_draft("substitute:", options).code(), Code::invalid_argument);
}

}  // namespace
}  // namespace millrace::engine

// What happens when the disk fails, the file changes or the budget is too small: a clear word, and no wrong token.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/support.h"
#include "text/constraint/grammar_constraint.h"
#include "text/constraint/schema.h"

namespace millrace::engine {
namespace {

using namespace test;

constexpr const char* kQuestion = "What is the capital of France?";
constexpr const char* kAnswer = "The capital of France is Paris.";

EngineOptions tight() {
  EngineOptions options = roomy(moe_path());
  options.memory.ram_bytes = 5'000'000;
  options.demand.context_tokens = 512;
  options.storage.backend = storage::BackendKind::pread_buffered;
  return options;
}

class Faults : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Faults, testing::Values("eio", "short"), [](const auto& info) { return info.param; });

TEST_P(Faults, EndTheRequestAndTheNextOneWorks) {
  // From the first read of the first pass to deep inside the answer.
  for (const int after : {0, 1, 3, 10, 40, 100, 300}) {
    SCOPED_TRACE(after);
    EngineOptions options = tight();
    options.storage.faults = {*storage::parse_fault(std::string(GetParam()) + "@" + std::to_string(after))};
    Expected<std::unique_ptr<Engine>> engine = Engine::create(options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const Result struck = (*engine)->run(greedy(chat(**engine, kQuestion), 32));
    if (struck.finish == Finish::error) {
      EXPECT_EQ(struck.status.code(), Code::io_error) << struck.status.message();
      EXPECT_EQ(std::string(kAnswer).find(struck.text), 0u) << "said '" << struck.text << "' before the error";
    } else {
      EXPECT_EQ(struck.text, kAnswer) << "a short read may be read again, but never believed";
    }
    const Result next = (*engine)->run(greedy(chat(**engine, kQuestion), 32));
    EXPECT_EQ(next.finish, Finish::stop) << next.status.message();
    EXPECT_EQ(next.text, kAnswer);
  }
}

TEST(Trouble, AllRequestsOfThePassEndAndASessionKeepsWhatWasRight) {
  EngineOptions options = tight();
  options.demand.max_sequences = 2;
  options.demand.context_tokens = 256;
  options.storage.faults = {*storage::parse_fault("eio@150")};
  const auto engine = make(options);
  const auto session = engine->new_session();
  Request story = greedy(chat(*engine, "Tell me a short story."), 100);
  const auto first = engine->submit(std::move(story), *session);
  const auto second = engine->submit(greedy(chat(*engine, "Tell me a short story."), 100));
  ASSERT_TRUE(first.ok() && second.ok());
  drain(*engine);
  const Result a = engine->take(*first), b = engine->take(*second);
  EXPECT_EQ(a.finish, Finish::error);
  EXPECT_EQ(b.finish, Finish::error);
  EXPECT_EQ(engine->run(greedy(chat(*engine, kQuestion), 32), session.get()).text, kAnswer);
}

TEST(Trouble, AFileThatIsCutWhileItRunsEndsTheRequest) {
  const std::string copy = (std::filesystem::temp_directory_path() / "millrace-cut.gguf").string();
  for (const storage::BackendKind kind : {storage::BackendKind::pread_buffered, storage::BackendKind::mmap}) {
    SCOPED_TRACE(storage::backend_name(kind));
    std::filesystem::copy_file(moe_path(), copy, std::filesystem::copy_options::overwrite_existing);
    EngineOptions options = tight();
    options.model.path = copy;
    options.storage.backend = kind;
    if (kind == storage::BackendKind::mmap) options.memory.ram_bytes = 25'000'000;
    const auto engine = make(options);
    EXPECT_EQ(engine->run(greedy(chat(*engine, kQuestion), 32)).text, kAnswer);
    std::filesystem::resize_file(copy, 3'000'000);
    const Result result = engine->run(greedy(chat(*engine, "Tell me a short story."), 32));
    EXPECT_EQ(result.finish, Finish::error);
    EXPECT_EQ(result.text, "") << "no token of a pass over a cut file may be believed";
    EXPECT_FALSE(result.status.message().empty());
  }
  std::filesystem::remove(copy);
}

TEST(Trouble, AFileThatIsRewrittenWhileItRunsEndsTheRequest) {
  const std::string copy = (std::filesystem::temp_directory_path() / "millrace-rewritten.gguf").string();
  std::filesystem::copy_file(moe_path(), copy, std::filesystem::copy_options::overwrite_existing);
  EngineOptions options = tight();
  options.model.path = copy;
  const auto engine = make(options);
  {
    std::fstream file(copy, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(9'000'000);
    file << "something else";
  }
  const Result result = engine->run(greedy(chat(*engine, kQuestion), 32));
  EXPECT_EQ(result.finish, Finish::error);
  EXPECT_EQ(result.text, "");
  std::filesystem::remove(copy);
}

TEST(Trouble, ModelsThatCannotBeOpenedSayWhy) {
  EngineOptions options = roomy(MILLRACE_TEST_DATA "/no-such-model.gguf");
  const Status missing = Engine::create(options).status();
  EXPECT_EQ(missing.code(), Code::not_found);
  EXPECT_NE(missing.message().find("no-such-model.gguf"), std::string::npos) << missing.message();
  options.model.path = MILLRACE_TEST_DATA "/eval240.jsonl";
  EXPECT_FALSE(Engine::create(options).ok());
}

// --- Budgets ---

class TooSmall : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, TooSmall, testing::Values("moe", "draft"),
                         [](const auto& info) { return info.param; });

TEST_P(TooSmall, BudgetNamesTheSmallestAndThatOneWorks) {
  EngineOptions options = roomy(GetParam() == "moe" ? moe_path() : draft_path());
  options.memory.ram_bytes = 100'000;
  const Status refused = Engine::create(options).status();
  ASSERT_EQ(refused.code(), Code::out_of_budget) << refused.message();
  const std::optional<std::uint64_t> named = named_ram(refused.message());
  ASSERT_TRUE(named.has_value()) << refused.message();
  RecordProperty("smallest", static_cast<int>(*named));

  options.memory.ram_bytes = *named;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->run(greedy(chat(*engine, kQuestion), 32)).text, kAnswer);
  Request whole = greedy(real_text(*engine, 20), -1);
  whole.ignore_end_tokens = true;
  const Result full = engine->run(std::move(whole));
  EXPECT_EQ(full.finish, Finish::length) << "the context it promised must fit when full: " << full.status.message();
  EXPECT_LE(engine->budget().reserved_bytes(), *named);
}

TEST_P(TooSmall, WithTheProgramMeasuredToo) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory grows from run to run";
#endif
  EngineOptions options = roomy(GetParam() == "moe" ? moe_path() : draft_path());
  options.memory.exact_budget = false;
  options.memory.ram_bytes = 100'000;
  const Status refused = Engine::create(options).status();
  const std::optional<std::uint64_t> named = named_ram(refused.message());
  ASSERT_TRUE(named.has_value()) << refused.message();
  options.memory.ram_bytes = *named;
  EXPECT_TRUE(Engine::create(options).ok()) << Engine::create(options).status().message();
}

TEST(Budget, AContextThatIsAskedForAndDoesNotFitIsRefused) {
  EngineOptions options = tight();
  options.demand.context_tokens = 2048;  // 6.3 MB of KV
  const Status refused = Engine::create(options).status();
  ASSERT_EQ(refused.code(), Code::out_of_budget) << refused.message();
  const std::optional<std::uint64_t> named = named_ram(refused.message());
  ASSERT_TRUE(named.has_value()) << refused.message();
  EXPECT_GT(*named, 6'300'000u);
  options.memory.ram_bytes = *named;
  EXPECT_TRUE(Engine::create(options).ok());
}

TEST(Budget, AMappedModelCountsWhole) {
  EngineOptions options = tight();
  options.storage.backend = storage::BackendKind::mmap;
  const Status refused = Engine::create(options).status();
  ASSERT_EQ(refused.code(), Code::out_of_budget) << refused.message();
  const std::optional<std::uint64_t> named = named_ram(refused.message());
  ASSERT_TRUE(named.has_value()) << refused.message();
  EXPECT_GT(*named, 12'500'000u);
  options.memory.ram_bytes = *named;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_GE(engine->budget().reserved_bytes(), 12'000'000u);
}

TEST(Budget, KvGrowsAtTheWeightsExpenseAndComesBack) {
  EngineOptions options = roomy(moe_path());
  options.memory.ram_bytes = 9'000'000;
  options.demand.context_tokens = 1024;
  const auto engine = make(options);
  engine->run(greedy(chat(*engine, kQuestion), 32));
  const int slots_before = engine->store().expert_slots();
  Request request = greedy(real_text(*engine, 900), 20);
  request.ignore_end_tokens = true;
  int slots_full = slots_before;
  request.on_text = [&](std::string_view, std::span<const TokenId>) {
    slots_full = std::min(slots_full, engine->store().expert_slots());
    EXPECT_LE(engine->budget().reserved_bytes(), options.memory.ram_bytes);
  };
  EXPECT_EQ(engine->run(std::move(request)).finish, Finish::length);
  EXPECT_LT(slots_full, slots_before);
  engine->run(greedy(chat(*engine, kQuestion), 32));
  EXPECT_GT(engine->store().expert_slots(), slots_full);
}

TEST(Budget, ARequestWithoutRoomForItsKvEndsAloneAndRoomComesBack) {
  EngineOptions options = tight();
  options.demand.max_sequences = 2;
  options.demand.context_tokens = 256;
  const auto engine = make(options);
  // Idle conversations hold KV beyond what the limits foresee, until there is none left.
  std::vector<std::unique_ptr<Session>> sessions;
  Result last;
  do {
    sessions.push_back(engine->new_session());
    last = engine->run(greedy(real_text(*engine, 200, sessions.size() * 300), 2), sessions.back().get());
  } while (sessions.size() < 20 && last.finish != Finish::error);
  ASSERT_EQ(last.status.code(), Code::out_of_budget) << last.status.message();
  ASSERT_GT(sessions.size(), 2u);

  const auto small = engine->submit(greedy(chat(*engine, kQuestion), 32), *sessions[0]);
  const auto large = engine->submit(greedy(real_text(*engine, 250), 4));
  ASSERT_TRUE(small.ok() && large.ok());
  drain(*engine);
  EXPECT_EQ(engine->take(*small).text, kAnswer) << "one request's lack is not another's";
  EXPECT_EQ(engine->take(*large).status.code(), Code::out_of_budget);

  for (std::size_t i = 0; i < 2; ++i) sessions[i]->clear();
  EXPECT_EQ(engine->run(greedy(real_text(*engine, 250), 4)).finish, Finish::length);
  EXPECT_LE(engine->budget().reserved_bytes(), options.memory.ram_bytes);
}

TEST(Budget, WhatAFormTakesIsGrantedAndComesBack) {
  EngineOptions options = roomy(moe_path());
  const auto engine = make(options);
  const auto held = [&](const std::string& tag) {
    for (const auto& entry : engine->budget().entries())
      if (entry.tag == tag) return entry.bytes;
    return std::uint64_t{0};
  };
  Request request = greedy(chat(*engine, kQuestion), 24);
  const auto trie = text::TokenTrie::make(engine->tokenizer());
  request.constraint = text::make_constraint(text::json_object_grammar(), trie);
  std::uint64_t most = 0;
  request.on_text = [&](std::string_view, std::span<const TokenId>) { most = std::max(most, held("forms")); };
  const Result result = engine->run(std::move(request));
  EXPECT_NE(result.finish, Finish::error) << result.status.message();
  EXPECT_GT(most, std::uint64_t{1000});
  EXPECT_EQ(held("forms"), 0u);
  EXPECT_EQ(held("tokens of forms"), trie->bytes());
}

TEST(Budget, APlanOnPaperIsFollowedWithTheSameBits) {
  EngineOptions options = tight();
  const auto engine = make(options);
  const residency::SavedPlan saved = engine->saved_plan();
  EXPECT_GT(saved.decisions.expert_slots, 0);
  const Result before = engine->run(greedy(chat(*engine, kQuestion), 32));
  EngineOptions again = options;
  again.memory.tile_bytes = saved.tile_bytes;
  again.demand.context_tokens = saved.context_tokens;
  again.demand.batch_tokens = saved.batch_tokens;
  residency::SavedPlan fewer = saved;
  fewer.decisions.expert_slots = 2;
  again.planning.follow = std::make_shared<const residency::SavedPlan>(fewer);
  const auto follower = make(again);
  ASSERT_NE(follower, nullptr);
  EXPECT_EQ(follower->plan().expert_slots, 2);
  EXPECT_EQ(follower->plan().resident_tiles, engine->plan().resident_tiles);
  EXPECT_EQ(follower->run(greedy(chat(*follower, kQuestion), 32)).text, before.text);

  again.model.path = draft_path();
  EXPECT_NE(Engine::create(again).status().message().find("another model"), std::string::npos);
}

TEST(Budget, PlanOnlyTellsWhatCreateDoes) {
  EngineOptions options = tight();
  const Expected<Planned> planned = plan_only(options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const auto engine = make(options);
  EXPECT_EQ(planned->plan.expert_slots, engine->plan().expert_slots);
  EXPECT_EQ(planned->plan.weight_memory_bytes(), engine->plan().weight_memory_bytes());
  EXPECT_EQ(planned->context_tokens, engine->context_tokens());
}

}  // namespace
}  // namespace millrace::engine

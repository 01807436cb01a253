// How many guesses of a drafter that takes time are verified, by what passes of so many rows and guesses took: on a
// clock of the test's for passes, and a drafter that sleeps.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "base/log.h"
#include "engine/speculation.h"

namespace millrace::engine {
namespace {

using text::TokenId;

TokenId token_at(std::size_t place) { return static_cast<TokenId>(place * 2654435761u >> 20 & 1023); }

/// Guesses what comes, `right` times of ten, and takes its time for it.
class SlowDrafter final : public Drafter {
 public:
  SlowDrafter(std::chrono::microseconds each, int right, std::chrono::microseconds prompt = {})
      : each_(each), prompt_(prompt), right_(right) {}
  std::string_view name() const override { return is_free() ? "free" : "slow"; }
  bool is_free() const override { return each_.count() == 0; }
  Status propose(std::span<DraftAsk> asks, const std::function<bool()>&) override {
    for (DraftAsk& ask : asks) {
      ask.read_prompt = prompt_.count() > 0 && prompts_++ < 4;
      if (ask.read_prompt) std::this_thread::sleep_for(prompt_);
      for (std::int64_t i = 0; i < ask.most; ++i) {
        std::this_thread::sleep_for(each_);
        const std::size_t place = ask.tokens.size() + static_cast<std::size_t>(i);
        const bool right = static_cast<int>(place * 40503u >> 4 & 1023) % 10 < right_;
        if (static_cast<std::size_t>(i) < ask.choices.size())
          ask.guesses.push_back(ask.choices[static_cast<std::size_t>(i)]);
        else
          ask.guesses.push_back(right ? token_at(place) : token_at(place) + 1);
      }
      asked += ask.most;
    }
    return {};
  }
  void accepted(std::uint64_t, std::int64_t, std::int64_t) override {}
  void forget(std::uint64_t) override {}

  std::int64_t asked = 0;  // of guesses

 private:
  const std::chrono::microseconds each_, prompt_;
  const int right_;
  int prompts_ = 0;  // read
};

/// Guesses verified a pass, over the last of so many passes of one request.
double drafts_a_pass(Speculator& speculator, const std::function<double(std::int64_t)>& seconds_of, int passes,
                     int last) {
  Request request;
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < 100; ++i) tokens.push_back(token_at(i));
  std::int64_t drafted = 0;
  for (int pass = 0; pass < passes; ++pass) {
    std::vector<DraftTurn> turns(1);
    turns[0].id = 1;
    turns[0].request = &request;
    turns[0].tokens = tokens;
    turns[0].most = kMostDrafts;
    speculator.draft(turns, 1, kMostDrafts, {});
    const std::vector<TokenId>& drafts = turns[0].drafts;
    const auto rows = 1 + std::ssize(drafts);
    speculator.passed(rows, seconds_of(rows));
    std::int64_t right = 0;
    while (right < std::ssize(drafts) && drafts[static_cast<std::size_t>(right)] == token_at(tokens.size())) {
      tokens.push_back(token_at(tokens.size()));
      ++right;
    }
    tokens.push_back(token_at(tokens.size()));
    speculator.verified(1, std::ssize(drafts), right);
    if (pass >= passes - last) drafted += std::ssize(drafts);
  }
  return static_cast<double>(drafted) / last;
}

SpeculateOptions automatic() {
  SpeculateOptions options;
  options.mode = SpeculateOptions::Mode::automatic;
  return options;
}
double flat(std::int64_t) { return 0.2; }                                                   // streamed
double steep(std::int64_t rows) { return 2e-3 * (0.4 + 0.6 * static_cast<double>(rows)); }  // resident, compute-bound

TEST(Speculator, WherePassesAreSlowAndRowsCheapThereAreManyGuesses) {
  const auto drafter = std::make_shared<SlowDrafter>(std::chrono::microseconds(100), 9);
  Speculator speculator(automatic(), {drafter});
  EXPECT_GE(drafts_a_pass(speculator, flat, 40, 10), 7);
  const DraftCounters counters = speculator.counters().back();
  EXPECT_GT(counters.passes, 20u);
  EXPECT_NEAR(counters.pass_seconds, 0.2 * static_cast<double>(counters.passes), 1e-6);
  EXPECT_NEAR(counters.verify_seconds, 0, 0.1) << "a row more costs nothing here";
}

std::vector<double> predicted(const std::function<double(std::int64_t)>& seconds_of) {
  std::vector<double> seconds;
  for (std::int64_t rows = 1; rows <= PassCosts::kMostRows; ++rows) seconds.push_back(seconds_of(rows));
  return seconds;
}

TEST(Speculator, WhatThePlanForetellsNeedsNoTrying) {
  const auto of = [](std::vector<double> predicted) {
    const auto drafter = std::make_shared<SlowDrafter>(std::chrono::microseconds(100), 9);
    Speculator speculator(automatic(), {drafter}, std::move(predicted));
    return drafts_a_pass(speculator, flat, 4, 3);
  };
  EXPECT_GE(of(predicted(flat)), 10);
  EXPECT_LT(of({}), 4) << "rows are tried two, four, eight at a time";
}

TEST(Speculator, APlanThatIsWrongIsFoundOut) {
  const auto drafter = std::make_shared<SlowDrafter>(std::chrono::microseconds(100), 5);
  Speculator speculator(automatic(), {drafter}, predicted(flat));
  EXPECT_LT(drafts_a_pass(
                speculator, [](std::int64_t rows) { return 0.2 * static_cast<double>(rows); }, 60, 40),
            0.3);
}

/// What is written to the log meanwhile, everything of it.
std::string logged(const std::function<void()>& work) {
  const log::Level before = log::level();
  log::set_level(log::Level::info);
  testing::internal::CaptureStderr();
  work();
  log::set_level(before);
  return testing::internal::GetCapturedStderr();
}

TEST(Speculator, WhereRowsAndGuessesCostMoreThanTheyBringThereAreNone) {
  const auto drafter = std::make_shared<SlowDrafter>(std::chrono::microseconds(1500), 5);
  Speculator speculator(automatic(), {drafter});
  const std::string log = logged([&] { EXPECT_LT(drafts_a_pass(speculator, steep, 120, 100), 0.3); });
  EXPECT_LT(drafter->asked, 60) << "nor is it asked, but now and then";
  const std::size_t said = log.find("drafts: none for now: a pass takes 2.00 ms, with a guess ");
  ASSERT_NE(said, std::string::npos) << log;
  EXPECT_EQ(log.find("none for now", said + 20), std::string::npos) << "once";
}

/// Whoever guesses for nothing has the passes in which a draft model does not pay.
TEST(Speculator, TheNextOneGuessesWhereTheFirstDoesNotPay) {
  const auto dear = std::make_shared<SlowDrafter>(std::chrono::microseconds(4000), 9),
             free = std::make_shared<SlowDrafter>(std::chrono::microseconds(0), 9);
  Speculator speculator(automatic(), {dear, free});
  const auto cheap_rows = [](std::int64_t rows) { return 2e-3 * (1 + 0.01 * static_cast<double>(rows)); };
  EXPECT_GE(drafts_a_pass(speculator, cheap_rows, 100, 50), 4);
  EXPECT_LT(dear->asked, 40);
  const std::vector<DraftCounters> counters = speculator.counters();
  ASSERT_EQ(counters.size(), 2u);
  EXPECT_EQ(counters[0].drafted_at[0] + counters[1].drafted_at[0], counters[0].passes + counters[1].passes);
  EXPECT_GT(counters[1].right, 5 * counters[0].right) << "the one of the last pass comes last";
}

TEST(Speculator, FreeGuessesThatAreWrongAreNotVerified) {
  const auto drafter = std::make_shared<SlowDrafter>(std::chrono::microseconds(0), 0);
  Speculator speculator(automatic(), {drafter});
  const std::string log = logged([&] { EXPECT_LT(drafts_a_pass(speculator, steep, 200, 100), 0.1); });
  EXPECT_NE(log.find("drafts: none for now"), std::string::npos) << log;
}

/// The first guesses wait for prompts: that is not what a guess takes.
TEST(Speculator, APromptThatIsReadFirstIsNoGuess) {
  const auto drafter = std::make_shared<SlowDrafter>(std::chrono::microseconds(100), 9, std::chrono::milliseconds(200));
  Speculator speculator(automatic(), {drafter});
  EXPECT_GE(drafts_a_pass(
                speculator, [](std::int64_t) { return 0.05; }, 30, 10),
            6);
}

TEST(Speculator, WhatVerifyingTakesIsMeasured) {
  SpeculateOptions options;
  options.mode = SpeculateOptions::Mode::fixed;
  options.drafts = 3;
  const auto drafter = std::make_shared<SlowDrafter>(std::chrono::microseconds(0), 10);
  Speculator speculator(options, {drafter});
  for (int i = 0; i < 3; ++i) speculator.passed(1, 0.01);
  drafts_a_pass(
      speculator, [](std::int64_t rows) { return 0.01 * static_cast<double>(rows); }, 10, 10);
  EXPECT_NEAR(speculator.counters().back().verify_seconds, 10 * 0.03, 0.02);
  EXPECT_EQ(speculator.counters().back().right, 30u);
}

}  // namespace
}  // namespace millrace::engine

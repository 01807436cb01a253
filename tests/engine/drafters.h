// Drafters that know the answer beforehand and guess as a test wants them to, and what every device has to hold to with
// whoever guesses.
#pragma once

#include <algorithm>
#include <functional>
#include <map>

#include "engine/drafter.h"
#include "engine/support.h"

namespace millrace::engine::test {

/// Tells a guess from the right token and its place in the answer.
using Guess = std::function<TokenId(TokenId right, std::size_t place)>;

/// Guesses by what answers to these prompts are.
class KnowingDrafter final : public Drafter {
 public:
  explicit KnowingDrafter(Guess guess) : guess_(std::move(guess)) {}

  void learn(const std::vector<TokenId>& prompt, const std::vector<TokenId>& answer) {
    texts_.push_back({prompt.size(), prompt});
    texts_.back().tokens.insert(texts_.back().tokens.end(), answer.begin(), answer.end());
  }
  std::string_view name() const override { return "knowing"; }
  bool is_free() const override { return true; }
  Status propose(std::span<DraftAsk> asks, const std::function<bool()>& /*stop*/) override {
    if (++asked_ == fails_at) return error(Code::io_error, "told to fail");
    for (DraftAsk& ask : asks) {
      EXPECT_TRUE(ask.guesses.empty());
      for (const Text& text : texts_) {
        if (text.tokens.size() <= ask.tokens.size() ||
            !std::equal(ask.tokens.begin(), ask.tokens.end(), text.tokens.begin()))
          continue;
        for (std::size_t i = ask.tokens.size(); i < text.tokens.size() && std::ssize(ask.guesses) < ask.most; ++i)
          ask.guesses.push_back(guess_(text.tokens[i], i - text.prompt));
        break;
      }
    }
    return {};
  }
  void accepted(std::uint64_t, std::int64_t drafted, std::int64_t right) override {
    EXPECT_LE(right, drafted);
    taken += right;
  }
  void forget(std::uint64_t) override { ++forgotten; }

  int fails_at = 0, forgotten = 0;
  std::int64_t taken = 0;

 private:
  struct Text {
    std::size_t prompt;
    std::vector<TokenId> tokens;
  };
  Guess guess_;
  std::vector<Text> texts_;
  int asked_ = 0;
};

inline TokenId right_guess(TokenId right, std::size_t) { return right; }
inline TokenId wrong_guess(TokenId right, std::size_t) { return right == 7 ? 8 : 7; }
/// Right most of the time, in runs of every length.
inline TokenId mixed_guess(TokenId right, std::size_t place) {
  return (place * 2654435761u >> 7) % 4 == 0 ? wrong_guess(right, place) : right;
}

/// The drafts of each pass as many as there may be, by these drafters.
inline EngineOptions drafting(EngineOptions options, std::shared_ptr<Drafter> drafter, std::int64_t drafts = 7) {
  options.speculate.mode = SpeculateOptions::Mode::fixed;
  options.speculate.drafts = drafts;
  if (drafter != nullptr) options.speculate.drafters = {std::move(drafter)};
  return options;
}

/// What a request gave, to the last bit.
struct Told {
  std::vector<TokenId> tokens;
  std::string text, pieces;
  std::vector<float> logits, log_probabilities;
  Finish finish = Finish::error;
  bool operator==(const Told&) const = default;
};

inline void listen(Request& request, Told& told) {
  request.on_logits = [&told](std::int64_t, std::span<const float> row) {
    told.logits.insert(told.logits.end(), row.begin(), row.end());
  };
  request.on_token = [&told](const TokenChoice& choice) { told.log_probabilities.push_back(choice.log_probability); };
  request.on_text = [&told](std::string_view text, std::span<const TokenId>) { (told.pieces += text) += '|'; };
}

inline void keep(Told& told, const Result& result) {
  EXPECT_NE(result.finish, Finish::error) << result.status.message();
  told.tokens = result.tokens;
  told.text = result.text;
  told.finish = result.finish;
}

using MakeRequests = std::function<std::vector<Request>(const Engine&)>;

/// Tokens and texts, and where `to_logits` is set logits and probabilities (a GPU brings all logits then). All at once,
/// each joining after a pass of those before it.
inline std::vector<Told> answers(Engine& engine, std::vector<Request> requests, bool to_logits = true) {
  std::vector<Told> told(requests.size());
  std::vector<Engine::Id> ids;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (to_logits) listen(requests[i], told[i]);
    ids.push_back(*engine.submit(std::move(requests[i])));
    engine.step();
  }
  drain(engine);
  for (std::size_t i = 0; i < ids.size(); ++i) keep(told[i], engine.take(ids[i]));
  return told;
}

/// Whoever guesses, every request is answered as without.
inline void expect_drafts_to_change_nothing(const EngineOptions& options, const MakeRequests& make_requests,
                                            bool to_logits = true) {
  const auto plain = make(options);
  ASSERT_NE(plain, nullptr);
  const std::vector<Request> requests = make_requests(*plain);
  const std::vector<Told> expected = answers(*plain, make_requests(*plain), to_logits);
  EXPECT_EQ(plain->load().drafts.size(), 0u);
  for (const auto& [name, guess] : std::map<std::string, Guess>{
           {"right", right_guess}, {"wrong", wrong_guess}, {"mixed", mixed_guess}, {"ngram", nullptr}}) {
    std::shared_ptr<KnowingDrafter> drafter;
    if (guess != nullptr) {
      drafter = std::make_shared<KnowingDrafter>(guess);
      for (std::size_t i = 0; i < requests.size(); ++i) drafter->learn(requests[i].prompt, expected[i].tokens);
    }
    const auto engine = make(drafting(options, drafter));
    const std::vector<Told> told = answers(*engine, make_requests(*engine), to_logits);
    for (std::size_t i = 0; i < told.size(); ++i) {
      EXPECT_EQ(told[i].tokens, expected[i].tokens) << name << " " << i;
      EXPECT_EQ(told[i].pieces, expected[i].pieces) << name << " " << i;
      EXPECT_TRUE(told[i] == expected[i]) << name << " " << i << ": logits, probabilities or end differ";
    }
    const LoadCounters load = engine->load();
    ASSERT_EQ(load.drafts.size(), 1u);
    // A token that ends computing anew counts as a prompt's.
    const bool same_turns = load.preempted == 0 && plain->load().preempted == 0;
    if (same_turns) {
      EXPECT_EQ(load.decode_tokens, plain->load().decode_tokens);
    }
    if (drafter == nullptr) continue;
    EXPECT_EQ(drafter->forgotten, std::ssize(requests));
    EXPECT_GT(load.drafts[0].drafted, 0u);
    if (name == "right") {
      EXPECT_EQ(load.drafts[0].right, load.drafts[0].drafted);
      EXPECT_LT(load.decode_turns, plain->load().decode_turns);
    }
    if (name == "wrong") {
      EXPECT_EQ(load.drafts[0].right, 0u);
      if (same_turns) {
        EXPECT_EQ(load.decode_turns, plain->load().decode_turns);
      }
    }
  }
}

/// Prompts of several lengths, one of them drawn, for models that say nothing.
inline std::vector<Request> noise(const Engine& engine) {
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

}  // namespace millrace::engine::test

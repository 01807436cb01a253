// Drafters that know the answer beforehand, and guess as a test wants them to.
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

}  // namespace millrace::engine::test

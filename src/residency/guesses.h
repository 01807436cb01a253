// How well experts are predicted before a layer's router chooses, and how many prefetched ones were used. Plain data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::residency {

/// By what: the next layer's router on the present state; what the last token went to there; the router on the
/// embedding.
enum class Guess : std::uint8_t { next_router, last_token, embedding };
constexpr std::size_t kGuesses = 3;
std::string_view guess_name(Guess guess);  // "next router", "last token", "embedding"

struct GuessCounters {
  std::uint64_t used = 0;                      // experts that rows went to, in layers for which there was a guess
  std::uint64_t guessed = 0, right = 0;        // experts; of them used
  std::uint64_t absent = 0, absent_right = 0;  // the same of those that were not in memory when they were guessed

  double recall() const { return used > 0 ? static_cast<double>(right) / static_cast<double>(used) : 0; }
  double precision() const { return guessed > 0 ? static_cast<double>(right) / static_cast<double>(guessed) : 0; }
  double absent_precision() const {
    return absent > 0 ? static_cast<double>(absent_right) / static_cast<double>(absent) : 0;
  }
  GuessCounters& operator+=(const GuessCounters& other);
};

struct GuessFigures {
  std::array<GuessCounters, kGuesses> by_kind{};
  std::uint64_t read_ahead = 0, read_ahead_used = 0;  // experts; of them used before they left

  const GuessCounters& of(Guess guess) const { return by_kind[static_cast<std::size_t>(guess)]; }
  bool any() const;
  /// "next router: 61 % of uses predicted, 61 % of guesses right; ...; 120 experts read ahead, 80 used"; empty without
  /// any. One line for people.
  std::string describe() const;
};

}  // namespace millrace::residency

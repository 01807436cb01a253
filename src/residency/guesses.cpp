#include "residency/guesses.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::residency {

std::string_view guess_name(Guess guess) {
  switch (guess) {
    case Guess::next_router:
      return "next router";
    case Guess::last_token:
      return "last token";
    case Guess::embedding:
      return "embedding";
  }
  return "";
}

GuessCounters& GuessCounters::operator+=(const GuessCounters& other) {
  used += other.used;
  guessed += other.guessed;
  right += other.right;
  absent += other.absent;
  absent_right += other.absent_right;
  return *this;
}

bool GuessFigures::any() const {
  return std::any_of(by_kind.begin(), by_kind.end(), [](const GuessCounters& one) { return one.guessed > 0; });
}

std::string GuessFigures::describe() const {
  if (!any()) return {};
  std::string out;
  for (std::size_t kind = 0; kind < kGuesses; ++kind) {
    const GuessCounters& one = by_kind[kind];
    if (one.guessed == 0) continue;
    out += fmt::format("{}: {:.0f} % of uses predicted, {:.0f} % of guesses right ({:.0f} % of those not in memory); ",
                       guess_name(static_cast<Guess>(kind)), 100 * one.recall(), 100 * one.precision(),
                       100 * one.absent_precision());
  }
  return out + fmt::format("{} experts read ahead, {} of them used", read_ahead, read_ahead_used);
}

}  // namespace millrace::residency

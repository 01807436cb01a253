// Chooses how many guesses a pass verifies: the number with the most tokens per second, from the measured time of
// passes by their rows and the rate of right guesses. Its only state are these measurements. Thread-safety: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "engine/drafter.h"

namespace millrace::engine {

/// The measured seconds of passes by their number of rows.
class PassCosts {
 public:
  static constexpr std::int64_t kMostRows = 64;

  /// predicted: seconds of passes of 1, 2, ... kMostRows rows; fewer: unknown. What was measured says by how much they
  /// are off, and they say how far rows that were not are worth a try at once.
  explicit PassCosts(std::vector<double> predicted = {}) : predicted_(std::move(predicted)) {}

  /// A pass of so many rows, none of them of a prompt, took so long.
  void measured(std::int64_t rows, double seconds);
  /// Rows that were not measured twice cost what was predicted, as far off as that was of others. Without predictions
  /// they are taken for as cheap as may be, so that they are tried: those up to twice as many as were measured; more
  /// cost too much for now. What was measured long ago is believed a little less with each pass since, for the same
  /// reason. 0: nothing was measured yet to tell it from.
  double of(std::int64_t rows) const;
  bool foretells() const { return std::ssize(predicted_) >= kMostRows; }

 private:
  struct Entry {
    double seconds = 0;
    std::int64_t samples = 0, at = 0;  // `at`: the pass of the last one
  };
  double believed(std::int64_t rows) const;
  double guessed(std::int64_t rows) const;
  double foretold(std::int64_t rows) const;

  std::array<Entry, kMostRows + 1> entries_;
  std::vector<double> predicted_;
  std::int64_t passes_ = 0;
};

/// How often the guess at a position is right if all before it are. Older guesses count less.
class Acceptance {
 public:
  void record(std::int64_t place, bool right);
  /// `prior` counts like a few guesses with that probability.
  double probability(std::int64_t place, double prior) const;

 private:
  struct Place {
    double tried = 0, right = 0;
  };
  std::array<Place, kMostDrafts> places_;
};

/// One request's guesses, for choose_drafts().
struct DraftOdds {
  std::vector<double> all_right;  // [guesses]: that this guess and all before it are right; falling
  std::int64_t drafts = 0;        // out: the first so many are worth their rows
};
/// `base_rows` go along anyway, one token comes of each of `odds`; `most_drafts` of all together.
void choose_drafts(const PassCosts& costs, std::int64_t base_rows, std::int64_t most_drafts, std::span<DraftOdds> odds);

}  // namespace millrace::engine

// Guessing which experts the next layers will use, so that idle disks can read them ahead. Guesses change when bytes
// come, never what is computed. Pure; the executor does the rest (exec/cpu_guess.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "exec/program.h"
#include "residency/guesses.h"

namespace millrace::exec {

/// off: nobody guesses. automatic: where passes are measured to be faster with it (PrefetchTrial). always: for tests
/// and measurements.
enum class Prefetch : std::uint8_t { off, automatic, always };

constexpr std::int64_t kGuessedRows = 4;   // of passes in which experts are guessed, at most
constexpr std::int64_t kMostGuesses = 64;  // experts of a layer

/// Whether guesses of a kind are right often enough to be read: of the older ones each counts less.
class GuessTrust {
 public:
  bool worth_reading() const { return (right_ + kDoubt) / (guessed_ + kDoubt) >= kLeastPrecision; }
  /// What came of those whose experts were not in memory.
  void count(const residency::GuessCounters& counted) {
    guessed_ = kFade * guessed_ + static_cast<double>(counted.absent);
    right_ = kFade * right_ + static_cast<double>(counted.absent_right);
  }

 private:
  // Guesses of which less than this part is right do harm on average: a read that nobody needs stands before one that
  // somebody does.
  static constexpr double kLeastPrecision = 1.0 / 3;
  static constexpr double kDoubt = 32, kFade = 0.999;  // experts guessed as well as hoped, before any was
  double guessed_ = 0, right_ = 0;
};

/// How a mixture's router is asked before its turn: on the buffer that its norm will read, as that is by then.
struct RouterAhead {
  std::int64_t layer = 0;
  Act state;       // whose rows the norm reads
  WeightRef norm;  // none(): the router reads something else than a norm of a buffer, and is not asked ahead
  float eps = 0;
  WeightRef router;
  Experts experts;

  bool known() const { return !norm.none(); }
};
/// Of a program's mixtures, in the order of a pass.
std::vector<RouterAhead> routers_ahead(const Program& program);

/// Whether passes are faster with experts read ahead: tries both, pass by pass in turns of a few, keeps what is faster,
/// and tries again later; the later, the more often reading ahead has lost.
class PrefetchTrial {
 public:
  static constexpr int kFirst = 8;       // passes before the first trial: what is cold is no measure
  static constexpr int kTurn = 6;        // passes of one kind on end, the first of which does not count
  static constexpr int kTurns = 6;       // without, with, without, with, ...
  static constexpr int kRest = 256;      // passes until the next trial
  static constexpr int kMostRests = 32;  // times that, after trials that were lost
  static constexpr double kGain = 0.98;  // of the median time without: so much faster it has to be

  /// Of the pass to come.
  bool on() const { return trying_ ? turn() % 2 == 1 : on_; }
  bool trying() const { return trying_; }
  /// A pass of few rows ended, which went as on() said; seconds a row.
  void passed(double seconds);

 private:
  int turn() const { return done_ / kTurn; }
  void decide();

  bool trying_ = false, on_ = false;
  int left_ = kFirst, rests_ = 1;   // passes until the trial; rests behind a trial that is lost
  int done_ = 0;                    // passes of this trial
  std::vector<double> seconds_[2];  // without, with
};

}  // namespace millrace::exec

#include "engine/draft_choice.h"

#include <algorithm>

namespace millrace::engine {
namespace {

constexpr std::int64_t kFirstSamples = 3;  // of which the fastest counts: the first may have prepared something
constexpr std::int64_t kSureSamples = 2;
constexpr double kTooMuch = 1e3;
constexpr double kNewSample = 0.2;          // weight of a new one
constexpr double kMostOfLast = 2;           // one that takes longer than so many times as much was disturbed
constexpr double kDoubtAPass = 1.0 / 8192;  // taken off what was not measured since
constexpr double kMostDoubt = 0.4;
constexpr double kForget = 0.98;     // what a guess's weight is multiplied by with each later one
constexpr double kPriorWeight = 4;   // guesses
constexpr double kLeastGain = 1.03;  // drafts that bring less are noise

}  // namespace

void PassCosts::measured(std::int64_t rows, double seconds) {
  ++passes_;
  if (rows < 1 || rows > kMostRows || seconds <= 0) return;
  Entry& entry = entries_[static_cast<std::size_t>(rows)];
  if (entry.samples == 0)
    entry.seconds = seconds;
  else if (entry.samples < kFirstSamples)
    entry.seconds = std::min(entry.seconds, seconds);
  else
    entry.seconds += kNewSample * (std::min(seconds, kMostOfLast * entry.seconds) - entry.seconds);
  ++entry.samples;
  entry.at = passes_;
}

/// What was measured, or 0.
double PassCosts::believed(std::int64_t rows) const {
  const Entry& entry = entries_[static_cast<std::size_t>(rows)];
  return entry.seconds * (1 - std::min(kMostDoubt, kDoubtAPass * static_cast<double>(passes_ - entry.at)));
}

/// From passes of fewer and of more rows that were measured: between two, by a line; beyond the last, by half the slope
/// that led there.
double PassCosts::guessed(std::int64_t rows) const {
  const auto measured = [this](std::int64_t number) {
    return entries_[static_cast<std::size_t>(number)].samples >= kSureSamples;
  };
  std::int64_t least = 1, below = rows - 1, above = rows + 1;
  while (least < rows && !measured(least)) ++least;
  while (below > least && !measured(below)) --below;
  while (above <= kMostRows && !measured(above)) ++above;
  if (least == rows) return above <= kMostRows ? believed(above) : 0;
  const double cost = believed(below);
  const auto slope = [&](std::int64_t from, std::int64_t to) {
    return std::max(0.0, believed(to) - believed(from)) / static_cast<double>(to - from);
  };
  if (above <= kMostRows) return cost + slope(below, above) * static_cast<double>(rows - below);
  if (rows > 2 * below) return kTooMuch * cost;
  return below > least ? cost + slope(least, below) / 2 * static_cast<double>(rows - below) : cost;
}

/// What was predicted, as far off as the nearest measured ones of fewer and of more rows were; 0: nothing was.
double PassCosts::foretold(std::int64_t rows) const {
  if (!foretells()) return 0;
  const auto of = [this](std::int64_t number) { return predicted_[static_cast<std::size_t>(number - 1)]; };
  const auto measured = [this](std::int64_t number) { return entries_[static_cast<std::size_t>(number)].samples > 0; };
  const auto off = [&](std::int64_t number) { return of(number) > 0 ? believed(number) / of(number) : 1; };
  std::int64_t below = rows, above = rows;
  while (below >= 1 && !measured(below)) --below;
  while (above <= kMostRows && !measured(above)) ++above;
  // Fewer rows than ever were measured may be as fast as predicted for all that is known, so that they are tried.
  if (below < 1) return of(rows) * (above <= kMostRows ? std::min(1.0, off(above)) : 1);
  if (above > kMostRows || above == below) return of(rows) * off(below);
  const double part = static_cast<double>(rows - below) / static_cast<double>(above - below);
  return of(rows) * (off(below) + part * (off(above) - off(below)));
}

double PassCosts::of(std::int64_t rows) const {
  rows = std::clamp<std::int64_t>(rows, 1, kMostRows);
  const Entry& entry = entries_[static_cast<std::size_t>(rows)];
  if (entry.samples >= kSureSamples) return believed(rows);
  const double told = foretold(rows), guess = told > 0 ? told : guessed(rows);
  if (entry.samples == 0) return guess;
  return guess > 0 ? std::min(guess, believed(rows)) : believed(rows);
}

void Acceptance::record(std::int64_t place, bool right) {
  if (place < 0 || place >= kMostDrafts) return;
  Place& one = places_[static_cast<std::size_t>(place)];
  one.tried = one.tried * kForget + 1;
  one.right = one.right * kForget + (right ? 1 : 0);
}

double Acceptance::probability(std::int64_t place, double prior) const {
  const Place& one = places_[static_cast<std::size_t>(std::clamp<std::int64_t>(place, 0, kMostDrafts - 1))];
  return (one.right + kPriorWeight * prior) / (one.tried + kPriorWeight);
}

void choose_drafts(const PassCosts& costs, std::int64_t base_rows, std::int64_t most_drafts,
                   std::span<DraftOdds> odds) {
  struct Guess {
    double gain;
    std::size_t request;
  };
  std::vector<Guess> guesses;
  for (std::size_t i = 0; i < odds.size(); ++i) {
    odds[i].drafts = 0;
    for (const double gain : odds[i].all_right) guesses.push_back({gain, i});
  }
  // Stable, and each request's odds fall: its first guesses come first.
  std::stable_sort(guesses.begin(), guesses.end(), [](const Guess& a, const Guess& b) { return a.gain > b.gain; });
  const double alone = costs.of(base_rows);
  if (alone <= 0) return;  // a pass without drafts comes first, to compare with
  double tokens = static_cast<double>(odds.size()), best = tokens / alone * kLeastGain;
  std::size_t taken = 0;
  for (std::size_t i = 0; i < guesses.size() && static_cast<std::int64_t>(i) < most_drafts; ++i) {
    tokens += guesses[i].gain;
    const double cost = costs.of(base_rows + static_cast<std::int64_t>(i) + 1);
    if (cost <= 0 || tokens <= best * cost) continue;
    best = tokens / cost;
    taken = i + 1;
  }
  for (std::size_t i = 0; i < taken; ++i) ++odds[guesses[i].request].drafts;
}

}  // namespace millrace::engine

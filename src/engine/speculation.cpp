#include "engine/speculation.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"

namespace millrace::engine {

using text::TokenId;
using Mode = SpeculateOptions::Mode;

namespace {

// Passes that are faster are left alone: launches of another shape, the look-ups and the noise of a clock would count.
constexpr double kSlowPass = 0.5e-3;
// Of a first guess that takes no time, before any was seen: it is made wherever something looks alike. Of others what
// was assumed where the plan gave them their memory.
constexpr double kFreeOdds = 0.4;
constexpr std::int64_t kFirstDepth = 4, kTrialDepth = 2, kPassesBetweenTrials = 128;
constexpr double kNewSample = 0.2;
constexpr std::int64_t kIdlePasses = 32;   // in a row without a guess taken, before the log has it
constexpr std::int64_t kFirstSamples = 3;  // of which the fastest counts: the first may have prepared something

}  // namespace

Expected<SpeculateOptions> parse_speculation(std::string_view text) {
  SpeculateOptions options;
  if (text == "off") return options;
  options.mode = Mode::automatic;
  if (text == "auto") return options;
  options.mode = Mode::fixed;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, options.drafts);
  if (problem == std::errc() && stop == end && options.drafts >= 1 && options.drafts <= kMostDrafts) return options;
  return error(Code::invalid_argument, "'{}' is none of off, auto and a number of drafts from 1 to {}", text,
               kMostDrafts);
}

Status read_draft(std::string_view text, SpeculateOptions& options) {
  constexpr std::string_view kSelf = "self:";
  options.within = text == "self" || text.starts_with(kSelf) ? Within::self
                   : text == "mtp"                           ? Within::mtp
                                                             : Within::none;
  options.draft_model = options.within == Within::none ? text : std::string_view();
  options.self_layers = 0;
  if (!text.starts_with(kSelf)) return {};
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data() + kSelf.size(), end, options.self_layers);
  if (problem == std::errc() && stop == end && options.self_layers >= 1 && options.self_layers <= kMostSelfLayers)
    return {};
  return error(Code::invalid_argument,
               "'{}': give self, self:K with a number of layers, mtp, or a model (./{} if a "
               "file is named so)",
               text, text);
}

Speculator::Speculator(const SpeculateOptions& options, std::vector<std::shared_ptr<Drafter>> drafters,
                       std::vector<double> predicted)
    : mode_(options.mode), fixed_(std::min(options.drafts, kMostDrafts)), costs_(std::move(predicted)) {
  for (std::shared_ptr<Drafter>& drafter : drafters) {
    const double first_odds = drafter->is_free() ? kFreeOdds : options.acceptance;
    guessers_.emplace_back(std::move(drafter), first_odds);
  }
  take_turn(0);
}

Speculator::Guesser::Guesser(std::shared_ptr<Drafter> one, double first_odds)
    : drafter(std::move(one)), first_odds(first_odds), acceptance(static_cast<std::size_t>(drafter->levels())) {
  counters.drafter = drafter->name();
}

Speculator::Known& Speculator::Guesser::of(std::uint64_t id) {
  Known& one = known[id];
  if (one.acceptance.empty()) one.acceptance.resize(acceptance.size());
  return one;
}

void Speculator::take_turn(std::size_t turn) {
  turn_ = turn;
  if (on()) present().had_turn = true;
}

/// A drafter that failed is gone.
void Speculator::lose(std::size_t turn, const Status& why) {
  const Guesser& guesser = guessers_[turn];
  log::warn("speculation: the drafter {} fails and guesses no more: {}", guesser.counters.drafter, why.message());
  if (guesser.had_turn) failed_.push_back(guesser.counters);
  guessers_.erase(guessers_.begin() + static_cast<std::ptrdiff_t>(turn));
  if (turn <= turn_) take_turn(turn_ > turn ? turn_ - 1 : 0);
}

bool Speculator::wants_states() const {
  return on() && std::any_of(guessers_.begin(), guessers_.end(),
                             [](const Guesser& guesser) { return guesser.drafter->wants_states(); });
}

void Speculator::computed(std::span<const Computed> rows, const exec::Executor& executor) {
  for (std::size_t i = 0; i < guessers_.size(); ++i) {
    if (!guessers_[i].drafter->wants_states()) continue;
    const Status status = guessers_[i].drafter->passed(rows, executor);
    if (!status.ok()) lose(i--, status);
  }
}

void Speculator::forget(std::uint64_t id) {
  for (Guesser& guesser : guessers_) {
    guesser.known.erase(id);
    guesser.drafter->forget(id);
  }
}

std::vector<DraftCounters> Speculator::counters() const {
  std::vector<DraftCounters> all = failed_;
  for (std::size_t i = 0; i < guessers_.size(); ++i)
    if (on() && i != turn_ && guessers_[i].had_turn) all.push_back(guessers_[i].counters);
  if (on()) all.push_back(guessers_[turn_].counters);
  return all;
}

/// What became of the guesses, verified or not, as far as the tokens that came since tell.
void Speculator::check_guesses(const DraftTurn& turn, Guesser& guesser) {
  Known& known = guesser.of(turn.id);
  Guessed& guessed = known.guessed;
  const auto level = static_cast<std::size_t>(guessed.level);
  while (guessed.checked < guessed.guesses.size() && guessed.at + guessed.checked < turn.tokens.size()) {
    const bool right = guessed.guesses[guessed.checked] == turn.tokens[guessed.at + guessed.checked];
    known.acceptance[level].record(static_cast<std::int64_t>(guessed.checked), right);
    guesser.acceptance[level].record(static_cast<std::int64_t>(guessed.checked), right);
    ++guessed.checked;
    if (!right) guessed.checked = guessed.guesses.size();
  }
}

/// That each of so many guesses, and all before it, are right.
std::vector<double> Speculator::odds(Guesser& guesser, std::uint64_t id, int level, std::size_t guesses) {
  const Acceptance& own = guesser.of(id).acceptance[static_cast<std::size_t>(level)];
  const Acceptance& all = guesser.acceptance[static_cast<std::size_t>(level)];
  std::vector<double> result;
  double all_right = 1, before = guesser.first_odds;
  for (std::int64_t place = 0; place < static_cast<std::int64_t>(guesses); ++place) {
    before = own.probability(place, all.probability(place, before));
    result.push_back(all_right *= before);
  }
  return result;
}

/// How many guesses each request is asked for. What a free drafter guesses costs nothing until it is verified; of
/// another one each guess takes time, whatever becomes of it.
std::int64_t Speculator::depth(Guesser& guesser, std::span<const DraftTurn> turns, std::int64_t base_rows,
                               std::int64_t most_drafts) {
  if (mode_ == Mode::fixed) return fixed_;
  if (guesser.drafter->is_free()) return kMostDrafts;
  if (guesser.timed_guesses == 0) return kFirstDepth;
  const auto requests = std::ssize(turns);
  std::vector<double> gains(static_cast<std::size_t>(std::min(kMostDrafts, most_drafts / requests)));
  for (const DraftTurn& turn : turns) {
    const std::vector<double> all_right = odds(guesser, turn.id, 0, gains.size());
    for (std::size_t i = 0; i < gains.size(); ++i) gains[i] += all_right[i];
  }
  auto tokens = static_cast<double>(requests);
  double best = tokens / costs_.of(base_rows);
  std::int64_t deepest = 0;
  for (std::int64_t i = 0; i < std::ssize(gains); ++i) {
    tokens += gains[static_cast<std::size_t>(i)];
    const double pass = costs_.of(base_rows + requests * (i + 1));
    const double cost = pass + static_cast<double>(i + 1) * guesser.seconds_a_depth;
    if (pass <= 0 || tokens <= best * cost) continue;
    best = tokens / cost;
    deepest = i + 1;
  }
  // The first guesses may have taken longer, because something was prepared.
  if (guesser.timed_guesses < kFirstSamples) return std::max(deepest, kFirstDepth);
  // How often it is right shows only where it guesses.
  return deepest == 0 && passes_ % kPassesBetweenTrials == 0 ? kTrialDepth : deepest;
}

/// Whose turn it is: the first whose guesses pay. How far it guesses, or 0: nobody's do.
std::int64_t Speculator::choose_guesser(std::span<const DraftTurn> turns, std::int64_t base_rows,
                                        std::int64_t most_drafts) {
  for (std::size_t i = 0; i < guessers_.size(); ++i) {
    const std::int64_t deepest = depth(guessers_[i], turns, base_rows, most_drafts);
    if (deepest > 0) {
      take_turn(i);
      return deepest;
    }
    if (most_drafts >= std::ssize(turns)) say_none(guessers_[i], base_rows);
  }
  return 0;
}

/// In the drafter's place, where the answer is known beforehand: each guess is right as often as the request says.
std::vector<TokenId> Speculator::choices(const DraftTurn& turn, std::int64_t most) {
  const std::vector<TokenId>& answer = turn.request->forced_tokens;
  std::vector<TokenId> guesses;
  for (std::int64_t i = 0; i < most && turn.generated + i < std::ssize(answer); ++i) {
    const bool right = static_cast<double>(next_random(draw_) >> 11) * 0x1p-53 < turn.request->drafts_right;
    const TokenId token = answer[static_cast<std::size_t>(turn.generated + i)];
    guesses.push_back(right ? token : token == 0 ? 1 : token - 1);
  }
  return guesses;
}

/// Fills asks_. False: the drafter failed and is gone.
bool Speculator::propose(std::span<const DraftTurn> turns, std::int64_t depth, const std::function<bool()>& stop) {
  asks_.clear();
  choices_.clear();
  choices_.reserve(turns.size());
  std::int64_t deepest = 0;
  for (const DraftTurn& turn : turns) {
    const bool reads = turn.request->pictures.empty() || present().drafter->takes_pictures();
    const std::int64_t most = reads ? std::min(depth, turn.most) : 0;
    asks_.push_back({.request = turn.id,
                     .tokens = turn.tokens,
                     .expected = turn.expected,
                     .most = most,
                     .sequence = turn.sequence});
    deepest = std::max(deepest, most);
    if (turn.request->drafts_right >= 0) asks_.back().choices = choices_.emplace_back(choices(turn, most));
  }
  const auto begin = std::chrono::steady_clock::now();
  Guesser& guesser = present();
  const Status status = guesser.drafter->propose(asks_, stop);
  const double seconds = seconds_since(begin);
  guesser.counters.seconds += seconds;
  if (!status.ok()) {
    lose(turn_, status);
    return false;
  }
  // Whoever had to read a prompt first took longer than guesses do.
  const bool read = std::any_of(asks_.begin(), asks_.end(), [](const DraftAsk& ask) { return ask.read_prompt; });
  if (deepest > 0 && !read) {
    const double each = seconds / static_cast<double>(deepest);
    double& known = guesser.seconds_a_depth;
    if (guesser.timed_guesses == 0)
      known = each;
    else if (guesser.timed_guesses < kFirstSamples)
      known = std::min(known, each);
    else
      known += kNewSample * (std::min(2 * known, each) - known);
    ++guesser.timed_guesses;
  }
  for (std::size_t i = 0; i < turns.size(); ++i) {
    DraftAsk& ask = asks_[i];
    if (turns[i].request->drafts_right >= 0) {
      ask.guesses.assign(ask.choices.begin(), ask.choices.end());
      ask.level = 0;
    }
    ask.guesses.resize(std::min(ask.guesses.size(), static_cast<std::size_t>(std::max<std::int64_t>(0, ask.most))));
    Guessed& guessed = guesser.of(ask.request).guessed;
    if (guessed.checked < guessed.guesses.size()) continue;  // goes on coming true
    guessed = {ask.tokens.size(), 0, ask.guesses, ask.level};
  }
  return true;
}

/// Fills odds_: how many of the guesses go along.
void Speculator::choose(std::int64_t base_rows, std::int64_t most_drafts) {
  odds_.clear();
  for (const DraftAsk& ask : asks_) odds_.push_back({odds(present(), ask.request, ask.level, ask.guesses.size())});
  if (mode_ == Mode::automatic) return choose_drafts(costs_, base_rows, most_drafts, odds_);
  for (std::int64_t place = 0; place < fixed_; ++place)
    for (DraftOdds& one : odds_)
      if (most_drafts > 0 && place < std::ssize(one.all_right)) {
        ++one.drafts;
        --most_drafts;
      }
}

/// Whether passes are left alone, or there was none yet to tell.
bool Speculator::too_fast(std::int64_t base_rows) {
  const double seconds = costs_.of(base_rows);
  if (mode_ != Mode::automatic || seconds >= kSlowPass) return false;
  if (seconds > 0 && !std::exchange(said_too_fast_, true))
    log::info("drafts: none, as a pass takes {:.2f} ms; --speculate N guesses all the same", seconds * 1e3);
  return true;
}

/// Once: who guesses, and what that costs.
void Speculator::say_drafts(std::int64_t base_rows) {
  std::int64_t drafts = 0;
  for (const DraftOdds& one : odds_) drafts += one.drafts;
  if (drafts == 0 || std::exchange(said_drafts_, true)) return;
  log::info("drafts: {} guesses; a pass takes {:.2f} ms without, with {} of them {:.2f} ms, as far as is known",
            present().counters.drafter, costs_.of(base_rows) * 1e3, drafts, costs_.of(base_rows + drafts) * 1e3);
}

/// Once of each drafter, where its guesses cost more than they bring for some passes: why.
void Speculator::say_none(Guesser& guesser, std::int64_t base_rows) {
  if (mode_ != Mode::automatic || ++guesser.idle_passes < kIdlePasses || std::exchange(guesser.said_none, true)) return;
  log::info(
      "drafts: none for now: a pass takes {:.2f} ms, with a guess {:.2f} ms, {} takes {:.2f} ms for it, and about "
      "{:.0f} % of its first guesses are right",
      costs_.of(base_rows) * 1e3, costs_.of(base_rows + 1) * 1e3, guesser.counters.drafter,
      guesser.seconds_a_depth * 1e3, guesser.acceptance.front().probability(0, guesser.first_odds) * 100);
}

void Speculator::draft(std::span<DraftTurn> turns, std::int64_t base_rows, std::int64_t most_drafts,
                       const std::function<bool()>& stop) {
  base_rows_ = base_rows;
  drafted_rows_ = 0;
  if (!on() || turns.empty()) return;
  ++passes_;
  for (Guesser& guesser : guessers_)
    if (guesser.had_turn)
      for (const DraftTurn& turn : turns) check_guesses(turn, guesser);
  most_drafts = std::min(most_drafts, PassCosts::kMostRows - base_rows);
  if (most_drafts <= 0 || too_fast(base_rows)) return;
  const std::int64_t deepest = choose_guesser(turns, base_rows, most_drafts);
  if (deepest == 0 || !propose(turns, deepest, stop)) return;
  choose(base_rows, most_drafts);
  say_drafts(base_rows);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    auto& guesses = asks_[i].guesses;
    turns[i].drafts.assign(guesses.begin(), guesses.begin() + odds_[i].drafts);
    drafted_rows_ += odds_[i].drafts;
  }
  const bool guessed =
      std::any_of(asks_.begin(), asks_.end(), [](const DraftAsk& ask) { return !ask.guesses.empty(); });
  if (drafted_rows_ > 0) present().idle_passes = 0;
  if (drafted_rows_ == 0 && guessed) say_none(present(), base_rows);
}

void Speculator::passed(std::int64_t rows, double seconds) {
  if (drafted_rows_ > 0 && on()) {
    DraftCounters& counters = present().counters;
    ++counters.passes;
    counters.pass_seconds += seconds;
    counters.verify_seconds += std::max(0.0, seconds - costs_.of(base_rows_));
  }
  costs_.measured(rows, seconds);
}

void Speculator::verified(std::uint64_t id, std::int64_t drafted, std::int64_t right) {
  if (!on()) return;
  if (present().known.contains(id)) present().drafter->accepted(id, drafted, right);
  DraftCounters& counters = present().counters;
  counters.drafted += static_cast<std::uint64_t>(drafted);
  counters.right += static_cast<std::uint64_t>(right);
  for (std::int64_t i = 0; i < drafted; ++i) {
    ++counters.drafted_at[static_cast<std::size_t>(i)];
    if (i < right) ++counters.right_at[static_cast<std::size_t>(i)];
  }
}

}  // namespace millrace::engine

// Which guesses go into a pass, by whom, and what became of them. Thread-safety: the thread that runs the passes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/draft_choice.h"
#include "engine/drafter.h"
#include "engine/engine.h"

namespace millrace::engine {

/// A request that decodes, in the pass to come.
struct DraftTurn {
  std::uint64_t id = 0;
  const Request* request = nullptr;
  std::span<const text::TokenId> tokens;   // prompt and answer so far
  std::int64_t generated = 0;              // of them
  std::int64_t expected = 0;               // DraftAsk::expected
  std::int64_t most = 0;                   // drafts that the request has room for
  kv::SequenceState* sequence = nullptr;   // DraftAsk::sequence
  std::vector<text::TokenId> drafts = {};  // out: those that go along
};

class Speculator {
 public:
  /// `drafters`: the first one guesses that has not failed and whose guesses pay for the time they take. None: nothing
  /// is ever drafted. predicted: of passes, for PassCosts.
  Speculator(const SpeculateOptions& options, std::vector<std::shared_ptr<Drafter>> drafters,
             std::vector<double> predicted = {});

  bool on() const { return mode_ != SpeculateOptions::Mode::off && !guessers_.empty(); }
  /// Whether more rows than are cheap may go along: their cost is predicted, or somebody asks for them whatever it is.
  bool may_be_dear() const { return mode_ == SpeculateOptions::Mode::fixed || costs_.foretells(); }
  /// `base_rows`: those of the pass without drafts; `most_drafts`: of all turns together.
  void draft(std::span<DraftTurn> turns, std::int64_t base_rows, std::int64_t most_drafts,
             const std::function<bool()>& stop);
  /// Whether passes are to bring the model's final states, and what they computed is to be told.
  bool wants_states() const;
  /// REQUIRES: as Drafter::passed().
  void computed(std::span<const Computed> rows, const exec::Executor& executor);
  /// A pass without rows of prompts took so long.
  void passed(std::int64_t rows, double seconds);
  /// Of a request's drafts in the last pass the first `right` became part of its answer.
  void verified(std::uint64_t id, std::int64_t drafted, std::int64_t right);
  void forget(std::uint64_t id);
  /// Of each drafter that had its turn; the one of the last pass last.
  std::vector<DraftCounters> counters() const;

 private:
  /// What a drafter guessed of a request and of which it is not known yet whether it comes true.
  struct Guessed {
    std::size_t at = 0;       // tokens that there were
    std::size_t checked = 0;  // guesses found right
    std::vector<text::TokenId> guesses;
    int level = 0;
  };
  struct Known {
    Guessed guessed;
    std::vector<Acceptance> acceptance;  // by level
  };

  /// A drafter, and what is known of its guesses.
  struct Guesser {
    Guesser(std::shared_ptr<Drafter> one, double first_odds);
    Known& of(std::uint64_t id);

    std::shared_ptr<Drafter> drafter;
    double first_odds;  // of a first guess, before any was seen
    bool had_turn = false;
    std::vector<Acceptance> acceptance;  // of all requests, by level
    std::unordered_map<std::uint64_t, Known> known;
    double seconds_a_depth = 0;      // where it is not free: one more guess for every request
    std::int64_t timed_guesses = 0;  // passes that the above is from
    std::int64_t idle_passes = 0;    // in a row, without a guess that pays
    bool said_none = false;          // in the log, once
    DraftCounters counters;
  };

  Guesser& present() { return guessers_[turn_]; }
  void take_turn(std::size_t turn);
  void lose(std::size_t turn, const Status& why);
  static void check_guesses(const DraftTurn& turn, Guesser& guesser);
  std::int64_t depth(Guesser& guesser, std::span<const DraftTurn> turns, std::int64_t base_rows,
                     std::int64_t most_drafts);
  std::int64_t choose_guesser(std::span<const DraftTurn> turns, std::int64_t base_rows, std::int64_t most_drafts);
  bool propose(std::span<const DraftTurn> turns, std::int64_t depth, const std::function<bool()>& stop);
  std::vector<text::TokenId> choices(const DraftTurn& turn, std::int64_t most);
  static std::vector<double> odds(Guesser& guesser, std::uint64_t id, int level, std::size_t guesses);
  void choose(std::int64_t base_rows, std::int64_t most_drafts);
  bool too_fast(std::int64_t base_rows);
  void say_drafts(std::int64_t base_rows);
  void say_none(Guesser& guesser, std::int64_t base_rows);

  const SpeculateOptions::Mode mode_;
  const std::int64_t fixed_;
  std::vector<Guesser> guessers_;
  std::size_t turn_ = 0;  // whose guesses the last pass had
  PassCosts costs_;
  std::vector<DraftAsk> asks_;                       // of the present pass, one a turn
  std::vector<std::vector<text::TokenId>> choices_;  // theirs
  std::vector<DraftOdds> odds_;                      // one an ask
  std::int64_t passes_ = 0;
  std::int64_t base_rows_ = 0, drafted_rows_ = 0;     // of the present pass
  bool said_too_fast_ = false, said_drafts_ = false;  // in the log, once
  std::uint64_t draw_ = 0x9e3779b97f4a7c15ull;
  std::vector<DraftCounters> failed_;  // of drafters that are gone
};

}  // namespace millrace::engine

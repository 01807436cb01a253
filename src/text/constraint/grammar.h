// A form as a pushdown automaton over bytes: rules, each a small automaton whose edges take a byte of a range, nothing,
// or a whole text of another rule. Built once by a Builder, then immutable and shared.
// Thread-safety: a Grammar is immutable; a Builder belongs to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::text {

using StateId = std::uint32_t;
using RuleId = std::uint32_t;

struct GrammarEdge {
  enum class Kind : std::uint8_t { bytes, nothing, call };
  Kind kind = Kind::nothing;
  std::uint8_t low = 0, high = 0;  // bytes
  RuleId rule = 0;                 // call: `to` is where it returns
  StateId to = 0;
};

/// States of a row that differ only in how many times more something may come: [begin, begin + most], state begin + i
/// having taken i, at least `least` wanted.
struct GrammarRow {
  StateId begin = 0;
  std::uint32_t least = 0, most = 0;
};

class Grammar {
 public:
  const std::vector<GrammarEdge>& edges(StateId state) const { return states_[state]; }
  StateId start(RuleId rule) const { return starts_[rule]; }
  bool ends_rule(StateId state) const { return ends_[state]; }
  RuleId root() const { return root_; }
  std::size_t state_count() const { return states_.size(); }
  /// The first state that allows the same next `look_ahead` bytes as this one; itself where there is none.
  StateId twin(StateId state, std::uint32_t look_ahead) const;

 private:
  friend class GrammarBuilder;
  std::vector<std::vector<GrammarEdge>> states_;
  std::vector<bool> ends_;
  std::vector<StateId> starts_;
  std::vector<GrammarRow> rows_;  // ascending begin
  RuleId root_ = 0;
};

/// A piece of automaton under construction.
struct Fragment {
  StateId begin = 0, end = 0;
};

class GrammarBuilder {
 public:
  /// States at most; beyond it finish() fails, and what is added counts for nothing.
  static constexpr std::size_t kMostStates = 100'000;

  RuleId new_rule();
  void define(RuleId rule, Fragment body);
  StateId new_state();
  void bytes(StateId from, std::uint8_t low, std::uint8_t high, StateId to);
  void nothing(StateId from, StateId to);
  void call(StateId from, RuleId rule, StateId to);
  void row(GrammarRow row) { grammar_.rows_.push_back(row); }
  bool full() const { return grammar_.states_.size() >= kMostStates; }

  Fragment empty();
  Fragment literal(std::string_view text);
  Fragment byte_range(std::uint8_t low, std::uint8_t high);
  Fragment rule(RuleId rule);
  Fragment sequence(Fragment a, Fragment b);
  Fragment either(const std::vector<Fragment>& options);  // no option: nothing fits
  Fragment optional(Fragment a);
  /// `make` is asked for as many copies as are needed. most: UINT32_MAX is without end.
  Fragment repeat(std::uint32_t least, std::uint32_t most, const std::function<Fragment()>& make);

  /// Drops what cannot be completed. Errors: invalid_argument (too large; no finite text fits; a rule that begins with
  /// itself).
  Expected<std::shared_ptr<const Grammar>> finish(RuleId root);

 private:
  void drop_dead_ends();
  Status check_left_recursion() const;

  Grammar grammar_;
  std::vector<StateId> finals_;  // by rule
};

}  // namespace millrace::text

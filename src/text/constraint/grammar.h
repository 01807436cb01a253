// A form as a pushdown automaton over bytes. Each rule is a small automaton; an edge consumes a byte of a range,
// nothing, or a complete text of another rule. A Builder creates it once; then it is immutable and shared.
//
// Building takes time and memory in proportion to the states and edges (n log n for a list of n words), both bounded by
// BuildLimits. Thread-safety: a Grammar is immutable; a Builder belongs to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/work_grant.h"

namespace millrace::text {

using StateId = std::uint32_t;
using RuleId = std::uint32_t;

struct GrammarEdge {
  enum class Kind : std::uint8_t { bytes, nothing, call };
  Kind kind = Kind::nothing;
  std::uint8_t low = 0, high = 0;  // bytes
  bool last : 1 = false;           // call: only the end of its own rule may follow
  bool differs : 1 = false;        // call: its text must differ from earlier texts in its place; written_texts.h
  RuleId rule = 0;                 // call: it returns to `to`
  StateId to = 0;
};

/// Consecutive states [begin, begin + most] of a bounded repetition: state begin + i has consumed i repeats, of which
/// at least `least` are needed.
struct GrammarRow {
  StateId begin = 0;
  std::uint32_t least = 0, most = 0;
};

class Grammar {
 public:
  std::span<const GrammarEdge> edges(StateId state) const {
    return std::span(edges_).subspan(begins_[state], begins_[state + 1] - begins_[state]);
  }
  StateId start(RuleId rule) const { return starts_[rule]; }
  bool ends_rule(StateId state) const { return ends_[state]; }
  RuleId root() const { return root_; }
  std::size_t state_count() const { return ends_.size(); }
  /// True if the texts of some call must differ.
  bool has_different() const { return has_different_; }
  std::uint64_t bytes() const;  // of memory
  /// The first state that allows the same next `look_ahead` bytes as this one, or this state.
  StateId twin(StateId state, std::uint32_t look_ahead) const;

 private:
  friend class GrammarBuilder;
  std::vector<GrammarEdge> edges_;     // by state
  std::vector<std::uint32_t> begins_;  // state's edges are edges_[begins_[state], begins_[state + 1])
  std::vector<bool> ends_;
  std::vector<StateId> starts_;
  std::vector<GrammarRow> rows_;  // ascending begin
  RuleId root_ = 0;
  bool has_different_ = false;
};

/// A piece of automaton under construction.
struct Fragment {
  StateId begin = 0, end = 0;
};

/// Limits on building. Beyond them finish() fails, and further additions are ignored.
struct BuildLimits {
  std::size_t states = 200'000;
  std::uint64_t bytes = 48u << 20;  // while building; the grammar takes a third of it at most
  WorkGrant* grant = nullptr;       // grants these bytes, and is polled for cancellation
};

class GrammarBuilder {
 public:
  explicit GrammarBuilder(const BuildLimits& limits = {});

  RuleId new_rule();
  void define(RuleId rule, Fragment body);
  StateId new_state();
  void bytes(StateId from, std::uint8_t low, std::uint8_t high, StateId to);
  void nothing(StateId from, StateId to);
  void call(StateId from, RuleId rule, StateId to);
  /// For JSON: the rule's text is an item of a list or a name of an object, in its only spelling, and differs from all
  /// that such calls consumed in the same list or object.
  void call_different(StateId from, RuleId rule, StateId to);
  /// Requires that the rules callable from `from` by call_different(), across empty edges, have at least `least` texts.
  void want_different(StateId from, std::uint32_t least);
  void row(GrammarRow row) { grammar_.rows_.push_back(row); }
  /// A limit was exceeded, or building was cancelled: loops may end.
  bool full() const { return stopped_; }
  /// Charges memory of the caller to the builder. False: the limit is exceeded.
  bool charge(std::uint64_t bytes);
  void discharge(std::uint64_t bytes) noexcept { memory_.shrink(bytes); }
  /// Polls for cancellation; false: full().
  bool go_on();

  Fragment empty();
  Fragment literal(std::string_view text);
  Fragment byte_range(std::uint8_t low, std::uint8_t high);
  Fragment rule(RuleId rule);
  Fragment different(RuleId rule);  // call_different()
  Fragment sequence(Fragment a, Fragment b);
  Fragment either(const std::vector<Fragment>& options);  // no options: matches nothing
  /// One of the texts and its continuation; common prefixes share states.
  Fragment either_behind(const std::vector<std::pair<std::string, Fragment>>& options);
  Fragment optional(Fragment a);
  /// Calls `make` for each copy needed. most: UINT32_MAX is unbounded.
  Fragment repeat(std::uint32_t least, std::uint32_t most, const std::function<Fragment()>& make);
  /// One of these texts. Common prefixes and suffixes share states. Source: Daciuk et al. 2000,
  /// "Incremental construction of minimal acyclic finite-state automata".
  Fragment one_of(std::vector<std::string> texts);

  /// Removes states that cannot reach an end. Errors: invalid_argument (too large; no finite text matches; left
  /// recursion; fewer different texts than required), unsupported (different texts within different texts), cancelled.
  Expected<std::shared_ptr<const Grammar>> finish(RuleId root);
  /// The left-recursive rule, if finish() failed for one.
  std::optional<RuleId> at_fault() const { return at_fault_; }

 private:
  struct Link {
    GrammarEdge edge;
    std::uint32_t next;  // of the same state; kNone: the last
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  void add(StateId from, const GrammarEdge& edge);
  void lay_out();
  template <typename Counts>
  std::vector<bool> leading_to(std::vector<bool> found, Counts counts) const;
  void drop_dead_ends();
  void mark_last_calls();
  std::vector<std::uint32_t> components(const std::vector<bool>& may_be_empty) const;
  Status check_left_recursion();
  bool step();
  std::vector<StateId> reached_from(StateId state, bool taking_nothing);
  bool is_endless(RuleId rule, const std::vector<std::uint32_t>& components);
  std::uint32_t count_texts(RuleId rule, std::uint32_t most, const std::vector<std::uint32_t>& components);
  Status check_different();

  const BuildLimits limits_;
  GrantedBytes memory_;
  std::vector<std::uint32_t> heads_;  // by state: its links
  std::vector<Link> links_;
  Grammar grammar_;                                        // its edges come with lay_out()
  std::vector<StateId> finals_;                            // by rule
  std::vector<std::pair<StateId, std::uint32_t>> wanted_;  // want_different()
  std::uint32_t asked_ = 0, steps_ = 0;                    // go_on(), step()
  std::optional<RuleId> at_fault_;
  bool stopped_ = false, cancelled_ = false;
};

}  // namespace millrace::text

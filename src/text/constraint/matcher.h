// Follows a grammar through an answer, and finds the tokens that keep to it.
//
// Where the answer stands is a set of places: a state and the stack of states that wait below it. The tokens that may
// come are those of any place. For one state, what happens above the bottom of its stack is the same wherever it is
// met: these tokens are found once and kept, with the nodes of the trie where the state's rule ends, from where the
// walk goes on with the state that waits below.
//
// Texts that have to differ (GrammarBuilder::call_different) are none that the automaton could tell: what was written
// is kept beside the places, no place passes a text's end that came before, and none stays that could not pass another
// one. Tokens are first found as if texts could repeat; then those that may repeat one are followed byte by byte.
//
// Work is bounded: a mask or a byte that would take too much ends in an error, never in a long silence.
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/constraint/grammar.h"
#include "text/constraint/token_trie.h"
#include "text/constraint/written_texts.h"

namespace millrace::text {

class Matcher {
 public:
  Matcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie);

  /// Another matcher that stands where this one does, and has learned nothing yet.
  Matcher copy() const;

  /// Sets the bits of the tokens that may come, end tokens excepted; others stay as they are.
  Status add_mask(std::span<std::uint32_t> bits);
  /// Errors: invalid_argument (no text of the grammar goes on so); nothing has changed then.
  Status take(std::string_view bytes);
  /// What was taken is a whole text of the grammar.
  bool may_end() const { return now_.ends; }
  bool may_go_on() const { return !now_.places.empty(); }
  /// Memory of what it has learned, about.
  std::uint64_t bytes() const;

 private:
  using StackId = std::uint32_t;  // 0: nothing waits
  struct Place {
    StateId state = 0;
    StackId stack = 0;
    bool operator==(const Place&) const = default;
    auto operator<=>(const Place&) const = default;  // NOLINT(modernize-use-nullptr): its own literal 0
  };
  struct StackNode {
    StateId waits = 0;
    StackId below = 0;
    std::uint32_t height = 1;
    WrittenTexts::Depth differs = 0;  // where what comes above has to differ; 0: it has not
  };
  /// Where a text stands.
  struct Moment {
    std::vector<Place> places;  // that take a byte next
    WrittenTexts written;
    bool ends = false;     // the text may be whole
    bool refused = false;  // some place was not reached, for a text would come again
  };
  /// A set of places above one bottom, made deterministic as it is met.
  struct Local {
    std::vector<Place> places;             // that take a byte next
    bool ends = false;                     // the bottom state's rule may end here
    std::unique_ptr<std::int32_t[]> next;  // [256]: index into locals_, kDead or kUnknown
  };
  struct Known {
    std::vector<std::uint32_t> bits;       // tokens that stay above the bottom, or end where it is reached
    std::vector<std::uint32_t> end_nodes;  // of the trie, with children: the rule ends here and the token goes on
    bool ends_at_once = false;
  };
  static constexpr std::int32_t kUnknown = -1, kDead = -2;

  StackId push(StateId waits, StackId below, WrittenTexts::Depth differs = 0);
  bool close(std::vector<Place>& places, Moment* differing = nullptr);
  std::vector<Place> after(const std::vector<Place>& places, std::uint8_t byte) const;
  void advance(Moment& moment, std::vector<Place> next, std::uint8_t byte);
  bool leads_at_once(Place place, const WrittenTexts& written, std::bitset<256>& others) const;
  bool leads_on(Place place, const WrittenTexts& written);
  void drop_repeats(std::span<std::uint32_t> bits);
  std::int32_t local_of(std::vector<Place> places);
  std::int32_t local_start(StateId state);
  std::int32_t step(std::int32_t local, std::uint8_t byte);
  const Known* known(StateId state);
  template <typename OnTokens, typename OnEnd>
  void walk(std::uint32_t from, std::int32_t local, OnTokens on_tokens, OnEnd on_end);
  void add_place(Place place, std::span<std::uint32_t> bits);
  void add_below(std::uint32_t node, Place place, std::span<std::uint32_t> bits);
  void set_tokens(const TokenTrie::Node& node, std::span<std::uint32_t> bits) const;
  void forget();
  bool spend(std::uint64_t work);
  Status too_much() const;

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<StackNode> stacks_;  // [0] unused
  std::unordered_map<std::uint64_t, StackId> stack_ids_;
  Moment now_;
  std::vector<Local> locals_;
  std::unordered_map<std::uint64_t, std::vector<std::int32_t>> local_ids_;  // by hash of places
  std::unordered_map<StateId, std::int32_t> local_starts_;
  std::unordered_map<StateId, Known> known_;
  std::uint64_t learned_bytes_ = 0;  // what locals_ and known_ hold outside themselves
  std::uint64_t work_left_ = 0;
  bool crowded_ = false;         // more places than are followed: this, not work, ended it
  bool begins_crowded_ = false;  // and so did the grammar's beginning
};

}  // namespace millrace::text

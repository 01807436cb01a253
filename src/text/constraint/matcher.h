// Follows a grammar through an answer, and finds the tokens that keep to it.
//
// Where the answer stands is a set of places: a state and the stack of states that wait below it. The tokens that may
// come are those of any place. For one state, what happens above the bottom of its stack is the same wherever it is
// met: these tokens are found once and kept, with the nodes of the trie where the state's rule ends, from where the
// walk goes on with the state that waits below.
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
  bool may_end() const { return may_end_; }
  bool may_go_on() const { return !places_.empty(); }
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

  StackId push(StateId waits, StackId below);
  bool close(std::vector<Place>& places);
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

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<StackNode> stacks_;  // [0] unused
  std::unordered_map<std::uint64_t, StackId> stack_ids_;
  std::vector<Place> places_;  // that take a byte next
  bool may_end_ = false;
  std::vector<Local> locals_;
  std::unordered_map<std::uint64_t, std::vector<std::int32_t>> local_ids_;  // by hash of places
  std::unordered_map<StateId, std::int32_t> local_starts_;
  std::unordered_map<StateId, Known> known_;
  std::uint64_t learned_bytes_ = 0;  // what locals_ and known_ hold outside themselves
  std::uint64_t work_left_ = 0;
};

}  // namespace millrace::text

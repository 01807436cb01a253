// Follows a grammar through an answer, and finds the allowed tokens.
//
// The position in an answer is a set of places: a state and the stack of return states below it. A token is allowed if
// any place allows it. For a given state, the result above the bottom of its stack does not depend on the stack, so
// these tokens are computed once and cached, with the nodes of the trie where the state's rule ends; from there the
// walk continues with the return state.
//
// The automaton itself cannot enforce texts that must differ (GrammarBuilder::call_different). The texts written so far
// are kept beside the places: a place cannot pass the end of a text that was written before, and is dropped if it
// cannot reach the end of a new one. Tokens are first found as if texts could repeat; those that might repeat one are
// then followed byte by byte.
//
// Work is bounded: a mask or a byte that would take too much returns an error.
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

  /// A matcher at the same position, with an empty cache.
  Matcher copy() const;

  /// Sets the bits of allowed tokens, except end tokens; other bits are not changed.
  Status add_mask(std::span<std::uint32_t> bits);
  /// Errors: invalid_argument (no text of the grammar continues this way); the state is then unchanged.
  Status take(std::string_view bytes);
  /// True if the bytes consumed are a complete text of the grammar.
  bool may_end() const { return now_.ends; }
  bool may_go_on() const { return !now_.places.empty(); }
  /// The memory of its cache, approximately.
  std::uint64_t bytes() const;

 private:
  using StackId = std::uint32_t;  // 0: empty
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
    WrittenTexts::Depth differs = 0;  // the depth at which the text above must differ; 0: nowhere
  };
  /// The position in a text.
  struct Moment {
    std::vector<Place> places;  // that take a byte next
    WrittenTexts written;
    bool ends = false;     // the text may end here
    bool refused = false;  // some place was dropped because a text would repeat
  };
  /// A set of places above one bottom, determinised on demand.
  struct Local {
    std::vector<Place> places;             // that take a byte next
    bool ends = false;                     // the bottom state's rule may end here
    std::unique_ptr<std::int32_t[]> next;  // [256]: index into locals_, kDead or kUnknown
  };
  struct Known {
    std::vector<std::uint32_t> bits;  // tokens that stay above the bottom, or end when it is reached
    std::vector<std::uint32_t>
        end_nodes;  // nodes of the trie with children where the rule ends and the token continues
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
  std::uint64_t learned_bytes_ = 0;  // heap memory of locals_ and known_
  std::uint64_t work_left_ = 0;
  bool crowded_ = false;         // there were more places than the limit (not too much work)
  bool begins_crowded_ = false;  // the same at the grammar's beginning
};

}  // namespace millrace::text

#include "text/constraint/grammar_constraint.h"

#include <algorithm>

#include "text/constraint/matcher.h"
#include "text/constraint/token_bits.h"

namespace millrace::text {
namespace {

class GrammarConstraint final : public Constraint {
 public:
  GrammarConstraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie)
      : trie_(trie), matcher_(std::move(grammar), std::move(trie)) {}

  Status mask(std::span<std::uint32_t> bits) override {
    std::fill(bits.begin(), bits.end(), 0u);
    MR_RETURN_IF_ERROR(matcher_.add_mask(bits));
    if (!matcher_.may_end()) return {};
    for (const TokenId id : trie_->end_tokens()) allow(bits, id);
    return {};
  }

  Status accept(TokenId id) override {
    if (trie_->ends_text(id)) return {};
    const std::string_view bytes = trie_->bytes_of(id);
    if (bytes.empty())
      return error(Code::invalid_argument, "token {} has no text, the asked-for form has no place for it", id);
    return matcher_.take(bytes);
  }

  bool done() const override { return matcher_.may_end() && !matcher_.may_go_on(); }
  std::uint64_t bytes() const override { return matcher_.bytes(); }
  std::uint64_t shared_bytes() const override { return trie_->bytes(); }

 private:
  std::shared_ptr<const TokenTrie> trie_;
  Matcher matcher_;
};

class ConstraintAfter final : public Constraint {
 public:
  ConstraintAfter(ThoughtBefore thought, std::shared_ptr<Constraint> inner, std::shared_ptr<const TokenTrie> trie,
                  std::shared_ptr<const Tokenizer> tokenizer)
      : thought_(std::move(thought)),
        inner_(std::move(inner)),
        trie_(std::move(trie)),
        tokenizer_(std::move(tokenizer)),
        state_(thought_.opened ? State::thought : State::start) {
    if (state_ == State::start && thought_.begin.empty() && thought_.header.empty()) state_ = State::text;
  }

  Status mask(std::span<std::uint32_t> bits) override {
    if (state_ == State::text) return inner_->mask(bits);
    std::fill(bits.begin(), bits.end(), 0u);
    switch (state_) {
      case State::start:
        if (thought_.header.empty()) MR_RETURN_IF_ERROR(inner_->mask(bits));
        if (!thought_.header.empty()) allow(bits, thought_.header[0]);
        if (!thought_.begin.empty()) allow(bits, thought_.begin[0]);
        break;
      case State::opening:
        set_next(bits);
        if (may_be_header()) allow(bits, thought_.header[at_]);
        break;
      case State::header:
        allow(bits, (*expected_)[at_]);
        break;
      case State::thought:
        allow_every_token(bits, tokenizer_->vocab_size());
        // An answer that ended here would have nothing of the form.
        for (const TokenId id : trie_->end_tokens()) forbid(bits, id);
        break;
      case State::text:
        break;
    }
    return {};
  }

  Status accept(TokenId id) override {
    switch (state_) {
      case State::text:
        return inner_->accept(id);
      case State::start:
        return begin(id);
      case State::opening:
      case State::header:
        return expect(id);
      case State::thought:
        think(id);
    }
    return {};
  }

  bool done() const override { return state_ == State::text && inner_->done(); }
  std::uint64_t bytes() const override { return inner_->bytes(); }
  std::uint64_t shared_bytes() const override { return inner_->shared_bytes(); }

 private:
  enum class State { start, opening, thought, header, text };

  static Status none(TokenId id) {
    return error(Code::invalid_argument, "token {} has no place before the asked-for form", id);
  }

  /// The next token of the mark, and at its last place those that say the same and white space behind it.
  void set_next(std::span<std::uint32_t> bits) const {
    const TokenId next = (*expected_)[at_];
    allow(bits, next);
    if (at_ + 1 < expected_->size() || trie_->bytes_of(next).empty()) return;
    for (TokenId id = 0; id < trie_->vocab_size(); ++id)
      if (stands_for(id, next)) allow(bits, id);
  }
  bool stands_for(TokenId id, TokenId last) const {
    const std::string_view bytes = trie_->bytes_of(id), wanted = trie_->bytes_of(last);
    return !wanted.empty() && bytes.starts_with(wanted) &&
           bytes.find_first_not_of(" \t\r\n", wanted.size()) == std::string_view::npos;
  }

  Status begin(TokenId id) {
    // A token that the form allows belongs to it.
    if (thought_.header.empty() && inner_->accept(id).ok()) {
      if (!trie_->ends_text(id)) state_ = State::text;
      return {};
    }
    const bool thinks = !thought_.begin.empty() && thought_.begin[0] == id;
    if (!thinks && thought_.header.empty()) return none(id);
    state_ = thinks ? State::opening : State::header;
    expected_ = thinks ? &thought_.begin : &thought_.header;
    at_ = 0;
    return expect(id);
  }

  /// Whether the header may still be meant, which begins as a thought's does in harmony.
  bool may_be_header() const {
    return state_ == State::opening && at_ < thought_.header.size() &&
           std::equal(thought_.begin.begin(), thought_.begin.begin() + static_cast<std::ptrdiff_t>(at_),
                      thought_.header.begin());
  }

  Status expect(TokenId id) {
    if ((*expected_)[at_] != id && may_be_header() && thought_.header[at_] == id) {
      expected_ = &thought_.header;
      state_ = State::header;
    }
    const bool last = at_ + 1 == expected_->size();
    if ((*expected_)[at_] != id && !(state_ == State::opening && last && stands_for(id, expected_->back())))
      return none(id);
    if (!last) {
      ++at_;
      return {};
    }
    state_ = state_ == State::opening ? State::thought : State::text;
    return {};
  }

  void think(TokenId id) {
    tail_ += tokenizer_->token_bytes(id, true);
    const bool ends = tail_.find(thought_.end) != std::string::npos;
    if (tail_.size() > thought_.end.size()) tail_.erase(0, tail_.size() - thought_.end.size());
    if (!ends) return;
    expected_ = &thought_.header_after;
    at_ = 0;
    state_ = expected_->empty() ? State::text : State::header;
  }

  const ThoughtBefore thought_;
  std::shared_ptr<Constraint> inner_;
  std::shared_ptr<const TokenTrie> trie_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  State state_;
  const std::vector<TokenId>* expected_ = nullptr;  // of a mark or header that has begun
  std::size_t at_ = 0;                              // its next token
  std::string tail_;                                // the last bytes of the thought, as many as its end has
};

}  // namespace

std::shared_ptr<Constraint> make_constraint(std::shared_ptr<const Grammar> grammar,
                                            std::shared_ptr<const TokenTrie> trie) {
  return std::make_shared<GrammarConstraint>(std::move(grammar), std::move(trie));
}

std::shared_ptr<Constraint> make_constraint_after(ThoughtBefore thought, std::shared_ptr<Constraint> inner,
                                                  std::shared_ptr<const TokenTrie> trie,
                                                  std::shared_ptr<const Tokenizer> tokenizer) {
  return std::make_shared<ConstraintAfter>(std::move(thought), std::move(inner), std::move(trie), std::move(tokenizer));
}

}  // namespace millrace::text

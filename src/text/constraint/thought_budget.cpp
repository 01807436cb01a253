#include "text/constraint/thought_budget.h"

#include <algorithm>

#include "text/constraint/token_bits.h"
#include "text/utf8.h"

namespace millrace::text {
namespace {

class ThoughtBudget final : public Constraint {
 public:
  ThoughtBudget(BoundThought thought, std::shared_ptr<Constraint> inner, std::shared_ptr<const Tokenizer> tokenizer)
      : thought_(std::move(thought)), inner_(std::move(inner)), tokenizer_(std::move(tokenizer)) {
    if (thought_.opened) enter();
  }

  Status mask(std::span<std::uint32_t> bits) override {
    if (inner_ != nullptr) {
      MR_RETURN_IF_ERROR(inner_->mask(bits));
    } else {
      allow_every_token(bits, tokenizer_->vocab_size());
    }
    if (const auto next = forced(); next && allows(bits, *next)) {
      std::fill(bits.begin(), bits.end(), 0u);
      allow(bits, *next);
    } else if (state_ == State::closed && thought_.not_again && allows(bits, *thought_.not_again)) {
      forbid(bits, *thought_.not_again);
      const bool none = std::all_of(bits.begin(), bits.end(), [](std::uint32_t word) { return word == 0; });
      if (none) allow(bits, *thought_.not_again);
    }
    return {};
  }

  Status accept(TokenId id) override {
    if (inner_ != nullptr) MR_RETURN_IF_ERROR(inner_->accept(id));
    if (forced() != std::optional(id)) {
      at_ = 0;
      follow(id);
    } else if (++at_ == thought_.closing.size()) {
      leave(State::closed);
    }
    return {};
  }

  bool done() const override { return inner_ != nullptr && inner_->done(); }
  std::uint64_t bytes() const override { return inner_ != nullptr ? inner_->bytes() : 0; }
  std::uint64_t shared_bytes() const override { return inner_ != nullptr ? inner_->shared_bytes() : 0; }

 private:
  enum class State {
    outside,
    inside,
    closed,  // outside, right after the tokens that were forced
  };

  void enter() {
    state_ = State::inside;
    tail_.clear();
  }
  void leave(State state) {
    state_ = state;
    tail_.clear();
    at_ = 0;
  }

  /// The token that must come next. A thought ends only at a character boundary.
  std::optional<TokenId> forced() const {
    const bool closing = at_ > 0 || (state_ == State::inside && spent_ >= thought_.tokens && ends_whole(tail_));
    return closing ? std::optional(thought_.closing[at_]) : std::nullopt;
  }

  static bool ends_whole(std::string_view text) {
    while (!text.empty()) {
      const Utf8Step step = next_utf8(text);
      if (step.kind == Utf8Kind::incomplete) return false;
      text.remove_prefix(step.bytes);
    }
    return true;
  }

  void follow(TokenId id) {
    const bool inside = state_ == State::inside;
    tail_ += tokenizer_->token_bytes(id, true);
    const std::string& mark = inside ? thought_.end : thought_.begin;
    const bool found = tail_.find(mark) != std::string::npos;
    if (tail_.size() > mark.size()) tail_.erase(0, tail_.size() - mark.size());
    if (found && inside) {
      leave(State::outside);
    } else if (found) {
      enter();
    } else if (inside) {
      ++spent_;
    } else {
      state_ = State::outside;
    }
  }

  const BoundThought thought_;
  std::shared_ptr<Constraint> inner_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  State state_ = State::outside;
  std::int64_t spent_ = 0;  // tokens of thoughts so far
  std::size_t at_ = 0;      // the next token of `closing`; above 0 while they are being forced
  std::string tail_;        // the last bytes, as many as the next mark has
};

}  // namespace

std::shared_ptr<Constraint> make_thought_budget(BoundThought thought, std::shared_ptr<Constraint> inner,
                                                std::shared_ptr<const Tokenizer> tokenizer) {
  return std::make_shared<ThoughtBudget>(std::move(thought), std::move(inner), std::move(tokenizer));
}

}  // namespace millrace::text

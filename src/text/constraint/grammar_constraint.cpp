#include "text/constraint/grammar_constraint.h"

#include <algorithm>

#include "text/constraint/matcher.h"

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
    for (const TokenId id : trie_->end_tokens())
      bits[static_cast<std::size_t>(id) / 32] |= 1u << (static_cast<std::uint32_t>(id) % 32);
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
  ConstraintAfter(std::string marker, std::shared_ptr<Constraint> inner, std::shared_ptr<const Tokenizer> tokenizer)
      : marker_(std::move(marker)), inner_(std::move(inner)), tokenizer_(std::move(tokenizer)) {}

  Status mask(std::span<std::uint32_t> bits) override {
    if (begun_) return inner_->mask(bits);
    std::fill(bits.begin(), bits.end(), 0u);
    for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id)
      bits[static_cast<std::size_t>(id) / 32] |= 1u << (static_cast<std::uint32_t>(id) % 32);
    return {};
  }

  Status accept(TokenId id) override {
    if (begun_) return inner_->accept(id);
    tail_ += tokenizer_->token_bytes(id, true);
    begun_ = tail_.find(marker_) != std::string::npos;
    if (tail_.size() > marker_.size()) tail_.erase(0, tail_.size() - marker_.size());
    return {};
  }

  bool done() const override { return begun_ && inner_->done(); }
  std::uint64_t bytes() const override { return inner_->bytes(); }
  std::uint64_t shared_bytes() const override { return inner_->shared_bytes(); }

 private:
  const std::string marker_;
  std::shared_ptr<Constraint> inner_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string tail_;  // the last bytes, as many as the marker has
  bool begun_ = false;
};

}  // namespace

std::shared_ptr<Constraint> make_constraint(std::shared_ptr<const Grammar> grammar,
                                            std::shared_ptr<const TokenTrie> trie) {
  return std::make_shared<GrammarConstraint>(std::move(grammar), std::move(trie));
}

std::shared_ptr<Constraint> make_constraint_after(std::string marker, std::shared_ptr<Constraint> inner,
                                                  std::shared_ptr<const Tokenizer> tokenizer) {
  return std::make_shared<ConstraintAfter>(std::move(marker), std::move(inner), std::move(tokenizer));
}

}  // namespace millrace::text

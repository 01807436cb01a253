#include "text/constraint/input_constraint.h"

#include <algorithm>
#include <optional>

#include "text/constraint/matcher.h"
#include "text/constraint/token_bits.h"

namespace millrace::text {
namespace {

constexpr std::size_t kMostBetween = 96;  // bytes from a tool's name to the key of its text
constexpr std::size_t kMostTail = 160;    // bytes of free text that are looked back at: these and the key

bool drop_end(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

void drop_space(std::string_view& text) {
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != std::string_view::npos)
    text.remove_suffix(1);
}

class InputConstraint final : public Constraint {
 public:
  InputConstraint(std::vector<BoundInput> inputs, const TagStyle* tags, std::shared_ptr<const TokenTrie> trie,
                  std::shared_ptr<const Tokenizer> tokenizer)
      : inputs_(std::move(inputs)), tags_(tags), trie_(std::move(trie)), tokenizer_(std::move(tokenizer)) {}

  Status mask(std::span<std::uint32_t> bits) override {
    if (within_) {
      std::fill(bits.begin(), bits.end(), 0u);
      return within_->add_mask(bits);
    }
    allow_every_token(bits, tokenizer_->vocab_size());
    if (!names_a_tool()) return {};
    for (const TokenId id : past_borders())
      if (!fits(id)) forbid(bits, id);
    return {};
  }

  Status accept(TokenId id) override {
    if (within_) {
      MR_RETURN_IF_ERROR(within_->take(trie_->bytes_of(id)));
    } else {
      const std::string bytes = tokenizer_->token_bytes(id, true);
      const auto begun = begin_of(bytes);
      tail_ += bytes;
      if (tail_.size() > kMostTail) tail_.erase(0, tail_.size() - kMostTail);
      if (!begun) return {};
      within_.emplace(begun->grammar, trie_);
      MR_RETURN_IF_ERROR(within_->take(begun->rest));
    }
    if (within_->may_end()) {
      within_.reset();
      tail_.clear();
    }
    return {};
  }

  bool done() const override { return false; }
  std::uint64_t bytes() const override { return within_ ? within_->bytes() : 0; }
  std::uint64_t shared_bytes() const override { return trie_->bytes(); }

 private:
  struct Begun {
    std::shared_ptr<const Grammar> grammar;
    std::string rest;  // bytes of the token that belong to the text already
  };

  /// A text's key ends `said`; before it in `said` stands what names its tool.
  bool ends_with_json_key(std::string_view& said) const {
    if (!drop_end(said, "\"")) return false;
    drop_space(said);
    if (!drop_end(said, ":")) return false;
    drop_space(said);
    return drop_end(said, "\"input\"");
  }
  bool ends_with_tag_key(std::string_view& said) const {
    if (tags_ == nullptr || tags_->key_begin.empty()) return false;
    if (!tags_->value_begin.empty()) {
      if (!drop_end(said, tags_->value_begin)) return false;
      drop_space(said);
    }
    if (!drop_end(said, tags_->key_end)) return false;
    drop_end(said, "\"");
    return drop_end(said, "input") && drop_end(said, tags_->key_begin);
  }

  /// The tool whose name came last before a key; null where none did.
  const BoundInput* tool_before(std::string_view said) const {
    if (said.size() > kMostBetween) said.remove_prefix(said.size() - kMostBetween);
    const BoundInput* last = nullptr;
    std::size_t at = 0;
    for (const BoundInput& input : inputs_) {
      const std::size_t found = said.rfind(input.tool);
      if (found == std::string_view::npos || (last != nullptr && found < at)) continue;
      last = &input;
      at = found;
    }
    return last;
  }
  bool names_a_tool() const {
    return std::any_of(inputs_.begin(), inputs_.end(),
                       [&](const BoundInput& input) { return tail_.find(input.tool) != std::string::npos; });
  }

  /// Whether these bytes, after the tail, lead into a tool's text.
  std::optional<Begun> begin_of(std::string_view bytes) const {
    const std::string all = tail_ + std::string(bytes);
    for (std::size_t end = tail_.size() + 1; end <= all.size(); ++end) {
      std::string_view in_json = std::string_view(all).substr(0, end), in_tags = in_json;
      const bool json = ends_with_json_key(in_json), tag = !json && ends_with_tag_key(in_tags);
      if (!json && !tag) continue;
      const BoundInput* const tool = tool_before(json ? in_json : in_tags);
      if (tool == nullptr) continue;
      const auto& grammar = json ? tool->in_json : tool->in_tags;
      if (grammar != nullptr) return Begun{grammar, all.substr(end)};
    }
    return std::nullopt;
  }

  /// A token that leads into a text has to keep its grammar with what it says of it.
  bool fits(TokenId id) const {
    const auto begun = begin_of(tokenizer_->token_bytes(id, true));
    return !begun || Matcher(begun->grammar, trie_).take(begun->rest).ok();
  }

  /// The tokens that may end a key and go on behind it.
  const std::vector<TokenId>& past_borders() {
    if (looked_) return past_borders_;
    looked_ = true;
    std::string borders = "\"";
    if (tags_ != nullptr)
      for (const std::string_view end : {tags_->key_end, tags_->value_begin})
        if (!end.empty()) borders += end.back();
    for (TokenId id = 0; id < trie_->vocab_size(); ++id) {
      const std::string_view bytes = trie_->bytes_of(id);
      const std::size_t border = bytes.find_first_of(borders);
      if (border != std::string_view::npos && border + 1 < bytes.size()) past_borders_.push_back(id);
    }
    return past_borders_;
  }

  const std::vector<BoundInput> inputs_;
  const TagStyle* const tags_;
  std::shared_ptr<const TokenTrie> trie_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<Matcher> within_;  // a text has begun
  std::string tail_;               // the end of what was said before
  std::vector<TokenId> past_borders_;
  bool looked_ = false;
};

}  // namespace

Expected<BoundInput> bound_input(std::string tool, GrammarSyntax syntax, std::string_view grammar, const TagStyle* tags,
                                 const BuildLimits& limits) {
  BoundInput input;
  input.tool = std::move(tool);
  const GrammarPlace string{true, "", "\"", true};
  MR_ASSIGN_OR_RETURN(input.in_json, written_grammar(syntax, grammar, limits, string));
  if (tags == nullptr) return input;
  const std::string_view line = tags->elements ? "" : "\n";
  const GrammarPlace place{false, std::string(line), fmt::format("{}{}", line, tags->value_end), true};
  MR_ASSIGN_OR_RETURN(input.in_tags, written_grammar(syntax, grammar, limits, place));
  return input;
}

std::shared_ptr<Constraint> make_input_constraint(std::vector<BoundInput> inputs, const TagStyle* tags,
                                                  std::shared_ptr<const TokenTrie> trie,
                                                  std::shared_ptr<const Tokenizer> tokenizer) {
  return std::make_shared<InputConstraint>(std::move(inputs), tags, std::move(trie), std::move(tokenizer));
}

}  // namespace millrace::text

// What the fuzzers of forms share: a small vocabulary, and a walk through a grammar's masks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/constraint/matcher.h"

namespace millrace::text {

/// Bytes, and some tokens of several.
class Letters final : public Tokenizer {
 public:
  Letters() { vocab_size_ = 256 + 6; }
  std::vector<TokenId> encode(std::string_view, Specials) const override { return {}; }
  std::vector<TokenId> encode(const MarkedText&) const override { return {}; }
  std::string token_bytes(TokenId id, bool) const override {
    static const char* const more[] = {"\":", "\", \"", "}}", "true", "\\u00", "],["};
    return id < 256 ? std::string(1, static_cast<char>(id)) : std::string(more[id - 256]);
  }
  std::optional<TokenId> special(std::string_view) const override { return std::nullopt; }
};

/// Takes, for each choice (so many at most), the first token at or after it that the mask allows: what a mask allows
/// has to be taken.
inline void walk_masks(std::shared_ptr<const Grammar> grammar, std::string_view choices, std::size_t most = 16) {
  static const auto trie = TokenTrie::make(Letters());
  Matcher matcher(std::move(grammar), trie);
  for (const char choice : choices.substr(0, most)) {
    std::uint32_t bits[9] = {};
    if (!matcher.add_mask(bits).ok() || !matcher.may_go_on()) break;
    for (unsigned i = 0; i < 262; ++i) {
      const unsigned id = (static_cast<unsigned char>(choice) + i) % 262;
      if (((bits[id / 32] >> (id % 32)) & 1u) == 0) continue;
      if (!matcher.take(trie->bytes_of(static_cast<TokenId>(id))).ok()) return;  // too ambiguous, or too deep
      break;
    }
  }
}

}  // namespace millrace::text

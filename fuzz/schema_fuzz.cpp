// JSON schemas from anywhere: compiling one and walking its masks ends soon, in a grammar or in an error. The input is
// a schema, a zero byte, and the walk's choices.
#include <cstdint>
#include <string_view>

#include "text/constraint/matcher.h"
#include "text/constraint/schema.h"

using namespace millrace::text;

namespace {

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto trie = TokenTrie::make(Letters());
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto cut = input.find('\0');
  const auto grammar = schema_grammar(input.substr(0, cut));
  if (!grammar.ok()) return 0;
  Matcher matcher(*grammar, trie);
  const std::string_view choices = cut == std::string_view::npos ? "" : input.substr(cut + 1);
  for (const char choice : choices.substr(0, 16)) {
    std::uint32_t bits[9] = {};
    if (!matcher.add_mask(bits).ok() || !matcher.may_go_on()) break;
    // The first token at or after the choice that the mask allows has to be taken.
    for (unsigned i = 0; i < 262; ++i) {
      const unsigned id = (static_cast<unsigned char>(choice) + i) % 262;
      if (((bits[id / 32] >> (id % 32)) & 1u) == 0) continue;
      if (!matcher.take(trie->bytes_of(static_cast<TokenId>(id))).ok()) return 0;  // too ambiguous, or too deep
      break;
    }
  }
  return 0;
}

// A model's tokens in compact form: a string pool, an offset and a type byte per token, and an open-addressed hash
// table of ids. 150,000 tokens take about 3 MB, 2,000 about 40 KB. Thread-safety: immutable once loaded.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "text/tokenizer.h"

namespace millrace::text {

/// tokenizer.ggml.token_type. Source: the GGUF specification.
enum class TokenType : std::uint8_t {
  undefined = 0,
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

/// How the file spells its tokens.
enum class Spelling {
  byte_alphabet,  // see byte_alphabet.h; stored here as decoded bytes
  plain,          // unchanged
};

/// A piece of a text: a special token, or text between two (id is -1).
struct TextPart {
  TokenId id = -1;
  std::string_view text;
};

class Vocabulary {
 public:
  /// Reads tokenizer.ggml.tokens and token_type. Errors: not_found (no tokens), corrupt (no token at all, lengths that
  /// differ, an impossible type, a byte token that names no byte).
  static Expected<Vocabulary> load(const modelfile::Model& model, Spelling spelling);

  std::int32_t size() const { return static_cast<std::int32_t>(types_.size()); }
  bool contains(std::int64_t id) const { return id >= 0 && id < size(); }
  /// REQUIRES (all three): contains(id).
  std::string_view text(TokenId id) const;
  TokenType type(TokenId id) const { return types_[static_cast<std::size_t>(id)]; }
  /// True for control and unknown tokens: text becomes such a token only if specials are parsed, and they are not
  /// shown.
  bool hidden(TokenId id) const { return type(id) == TokenType::control || type(id) == TokenType::unknown; }

  /// The token plain text `bytes` may become, or -1. Never a control, unknown or byte token; with
  /// Spelling::byte_alphabet no user-defined one either (split() has found those before).
  TokenId find(std::string_view bytes) const;
  std::size_t longest_token() const { return longest_token_; }  // bytes, among those find() knows

  /// The special token (control, unknown or user-defined) with exactly this text.
  std::optional<TokenId> special(std::string_view text) const;

  /// Splits text at special tokens, from the left, choosing the longest match. User-defined tokens always count,
  /// control and unknown ones only with Specials::parse. The parts point into `text`. Takes linear time, however many
  /// special tokens there are (Gemma has 6,400).
  std::vector<TextPart> split(std::string_view text, Specials specials) const;
  /// The same; control and unknown tokens count if all of their text is trusted.
  std::vector<TextPart> split(const MarkedText& text) const;

  /// The byte of a byte token such as "<0x0A>"; nullopt if `text` does not have that form.
  static std::optional<unsigned char> byte_value(std::string_view text);

 private:
  template <typename Counts>
  std::vector<TextPart> split_where(std::string_view whole, const Counts& counts) const;
  template <typename Counts>
  TokenId special_at(std::string_view whole, std::size_t begin, const Counts& counts) const;
  void append(std::string_view text, TokenType type, Spelling spelling);
  void index(Spelling spelling);
  bool strips_right(TokenId id) const;
  static std::uint64_t hash(std::string_view bytes);

  std::string pool_;
  std::vector<std::uint32_t> ends_;  // [size], token i is pool_[ends_[i-1], ends_[i])
  std::vector<TokenType> types_;     // [size]
  std::vector<bool> unspellable_;    // [size], normal tokens that are not of the byte alphabet: text cannot become them
  std::vector<std::uint32_t> slots_;        // id + 1, 0 is free; a power of two of slots, at most two thirds taken
  std::vector<TokenId> specials_;           // by text, bytewise, then by id
  std::array<bool, 256> begins_special_{};  // of a byte
  std::size_t longest_token_ = 0;
  bool phi3_ = false;  // white space after most special tokens is part of them
};

/// A metadata array of type T at `key`: nullptr if the key is absent. Errors: corrupt (the key holds something else).
template <typename T>
Expected<const std::vector<T>*> metadata_array(const modelfile::Model& model, std::string_view key) {
  const auto found = model.metadata().find(key);
  if (found == model.metadata().end()) return static_cast<const std::vector<T>*>(nullptr);
  if (const auto* array = std::get_if<std::shared_ptr<const modelfile::Array>>(&found->second); array && *array) {
    if (const auto* elements = std::get_if<std::vector<T>>(&(*array)->elements)) return elements;
  }
  return error(Code::corrupt, "metadata {} has the wrong type; the file was written wrongly, get it again", key);
}

/// tokenizer.ggml.scores, one for each of `count` tokens. Errors: not_found, corrupt.
Expected<const std::vector<float>*> token_scores(const modelfile::Model& model, std::int64_t count);

}  // namespace millrace::text

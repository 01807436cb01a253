// Converts text to token ids and back with the vocabulary in a GGUF file. Supports byte-level BPE ("gpt2"),
// SentencePiece-style models ("llama", "gemma4") and WordPiece ("bert"). tokenizer.ggml.pre names the pre-tokenizer.
// Thread-safety: immutable once made; encode() may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "text/marked_text.h"

namespace millrace::text {

using TokenId = std::int32_t;

/// The tokens for fill-in-the-middle: prefix, text before the gap, suffix, text after it, middle; the answer follows.
struct FillTokens {
  TokenId prefix = -1, suffix = -1, middle = -1;
  std::optional<TokenId> repository, file;  // before other files, which may precede
};

enum class Specials { as_text, parse };  // user text is encoded as_text, so it cannot inject a special token

class Tokenizer {
 public:
  /// Errors: unsupported (model or pre-tokenizer, named), corrupt, not_found.
  static Expected<std::shared_ptr<const Tokenizer>> from_model(const modelfile::Model& model);
  virtual ~Tokenizer() = default;

  /// Ids of `utf8` without BOS or EOS. Invalid UTF-8 is encoded byte by byte, never refused, never a crash.
  virtual std::vector<TokenId> encode(std::string_view utf8, Specials specials) const = 0;
  /// The same, with special tokens parsed only where the text is trusted.
  virtual std::vector<TokenId> encode(const MarkedText& text) const = 0;

  /// The bytes of a token, possibly a part of a character. Empty for control tokens, unless `with_specials`, and for
  /// ids outside the vocabulary.
  virtual std::string token_bytes(TokenId id, bool with_specials = false) const = 0;

  /// The text of ids, without SentencePiece's leading space if the vocabulary requires that.
  std::string decode(const std::vector<TokenId>& ids, bool with_specials = false) const;

  std::int32_t vocab_size() const { return vocab_size_; }
  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  bool adds_bos() const { return add_bos_; }
  bool adds_eos() const { return add_eos_; }
  /// True if the two texts of a pair are separated by two EOS, as for RoBERTa.
  bool parts_pairs_twice() const { return parts_pairs_twice_; }
  /// SentencePiece: a space is added before the text, and the first token's space is not part of the text.
  bool strips_leading_space() const { return strip_leading_space_; }
  /// True for EOS, end of turn and end of message: generation stops at it.
  bool ends_generation(TokenId id) const;
  /// Null: the model does not support fill-in-the-middle.
  const FillTokens* fill() const { return fill_ ? &*fill_ : nullptr; }
  /// The id of a special token by its exact text, e.g. "<|im_end|>".
  virtual std::optional<TokenId> special(std::string_view text) const = 0;

 protected:
  /// Sets add_bos_ and add_eos_ from the metadata; `add_bos` is the default. REQUIRES: bos_ and eos_ are set.
  Status read_flags(const modelfile::Model& model, bool add_bos);
  Status read_pair_flag(const modelfile::Model& model);

  std::int32_t vocab_size_ = 0;
  std::optional<TokenId> bos_, eos_;
  std::vector<TokenId> end_ids_;  // sorted
  std::optional<FillTokens> fill_;
  bool add_bos_ = false, add_eos_ = false, strip_leading_space_ = false, parts_pairs_twice_ = false;
};

/// Converts a stream of tokens to text without splitting characters: bytes are held back until their character is
/// complete. An invalid byte sequence becomes U+FFFD.
class Detokenizer {
 public:
  /// `continues_text`: the tokens continue visible text, so a leading space belongs to them (a raw completion);
  /// otherwise they begin a new text (an answer). `shown`: control tokens whose text is shown nevertheless, ascending
  /// (mark_tokens()).
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool continues_text = false,
                       std::vector<TokenId> shown = {});
  std::string push(TokenId id);
  std::string flush();  // the bytes held back, at the end of an answer

 private:
  std::string take(bool all);

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<TokenId> shown_;
  std::string pending_;  // an incomplete character
  bool first_;           // a leading space must be removed
};

}  // namespace millrace::text

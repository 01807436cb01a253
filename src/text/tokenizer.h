// Text to token ids and back, from the vocabulary in a GGUF file. Byte-level BPE ("gpt2") and SentencePiece-style
// ("llama", "gemma4") models, WordPiece ("bert"); pre-tokenizers by the name in tokenizer.ggml.pre.
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

/// What stands around the texts before and behind a gap, where a model was trained to fill one in: prefix, text,
/// suffix, text, middle; the answer follows.
struct FillTokens {
  TokenId prefix = -1, suffix = -1, middle = -1;
  std::optional<TokenId> repository, file;  // before other files that may be told first
};

enum class Specials { as_text, parse };  // user text is encoded as_text: it can never inject a special token

class Tokenizer {
 public:
  /// Errors: unsupported (model or pre-tokenizer, named), corrupt, not_found.
  static Expected<std::shared_ptr<const Tokenizer>> from_model(const modelfile::Model& model);
  virtual ~Tokenizer() = default;

  /// Ids of `utf8` without BOS or EOS. Invalid UTF-8 is encoded byte by byte, never refused, never a crash.
  virtual std::vector<TokenId> encode(std::string_view utf8, Specials specials) const = 0;
  /// The same, with special tokens parsed in the trusted stretches alone.
  virtual std::vector<TokenId> encode(const MarkedText& text) const = 0;

  /// The bytes a token stands for, maybe part of a character. Control tokens give nothing unless `with_specials`.
  /// An id outside the vocabulary gives nothing.
  virtual std::string token_bytes(TokenId id, bool with_specials = false) const = 0;

  /// Whole text of ids; SentencePiece's leading space removed where the vocabulary says so.
  std::string decode(const std::vector<TokenId>& ids, bool with_specials = false) const;

  std::int32_t vocab_size() const { return vocab_size_; }
  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  bool adds_bos() const { return add_bos_; }
  bool adds_eos() const { return add_eos_; }
  /// Between the two texts of a pair EOS stands twice, as RoBERTa has it.
  bool parts_pairs_twice() const { return parts_pairs_twice_; }
  /// SentencePiece: text is encoded with a space before it, and the first token's space is no part of the text.
  bool strips_leading_space() const { return strip_leading_space_; }
  /// True for EOS, end of turn and end of message: generation stops at it.
  bool ends_generation(TokenId id) const;
  /// Null: the model was not trained to fill in a gap.
  const FillTokens* fill() const { return fill_ ? &*fill_ : nullptr; }
  /// The id of a special token by its exact text, e.g. "<|im_end|>".
  virtual std::optional<TokenId> special(std::string_view text) const = 0;

 protected:
  /// add_bos_ and add_eos_ from the metadata; `add_bos` where it does not say. REQUIRES: bos_ and eos_ are set.
  Status read_flags(const modelfile::Model& model, bool add_bos);
  Status read_pair_flag(const modelfile::Model& model);

  std::int32_t vocab_size_ = 0;
  std::optional<TokenId> bos_, eos_;
  std::vector<TokenId> end_ids_;  // sorted
  std::optional<FillTokens> fill_;
  bool add_bos_ = false, add_eos_ = false, strip_leading_space_ = false, parts_pairs_twice_ = false;
};

/// Turns a stream of tokens into text that never holds half a character: bytes wait until their character is whole.
/// A byte sequence that can no longer become a character comes out as U+FFFD.
class Detokenizer {
 public:
  /// `continues_text`: the tokens go on where visible text ended, so that a first leading space belongs to them (a raw
  /// completion); otherwise they begin a text of their own (an answer).
  /// `shown`: control tokens whose text is shown all the same, ascending (mark_tokens()).
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool continues_text = false,
                       std::vector<TokenId> shown = {});
  std::string push(TokenId id);
  std::string flush();  // what still waits, at the end of an answer

 private:
  std::string take(bool all);

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<TokenId> shown_;
  std::string pending_;  // the beginning of a character
  bool first_;           // a leading space is still to be removed
};

}  // namespace millrace::text

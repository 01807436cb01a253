// SentencePiece's unigram tokenizers ("t5" in tokenizer.ggml.model; XLM-RoBERTa's and T5's): a text becomes the
// sequence of tokens with the highest sum of scores (log probabilities). Source: Kudo 2018 (arXiv:1804.10959);
// sentencepiece's normalizer and its unigram model. Thread-safety: immutable once made.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "text/charsmap.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace millrace::text {

class UnigramTokenizer final : public Tokenizer {
 public:
  /// Errors: corrupt, not_found.
  static Expected<std::shared_ptr<const Tokenizer>> make(const modelfile::Model& model);

  std::vector<TokenId> encode(std::string_view utf8, Specials specials) const override;
  std::vector<TokenId> encode(const MarkedText& text) const override;
  std::string token_bytes(TokenId id, bool with_specials) const override;
  std::optional<TokenId> special(std::string_view text) const override { return vocabulary_.special(text); }

 private:
  /// A text being normalised.
  struct Normal {
    std::string text;
    bool begun = false;       // the output is not empty
    bool owes_space = false;  // a space must precede the next character
  };

  explicit UnigramTokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  Status read_scores(const modelfile::Model& model);
  std::vector<TokenId> encode_parts(const std::vector<TextPart>& parts) const;
  void normalize(std::string_view text, Normal& normal) const;
  void encode_normal(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_run(std::string_view run, std::vector<TokenId>& ids) const;
  double score(TokenId id) const;

  Vocabulary vocabulary_;
  Charsmap charsmap_;
  std::vector<float> scores_;  // [vocab]
  double unknown_score_ = 0;   // of a character without a token
  TokenId unknown_ = -1;
  bool space_before_ = true, merges_spaces_ = true;
  bool cuts_at_spaces_ = true;  // no token contains a space after its beginning
};

}  // namespace millrace::text

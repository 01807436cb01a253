// WordPiece tokenizers ("bert" in tokenizer.ggml.model): text is cleaned, lower-cased and stripped of accents if the
// file requires it, and split into words at white space, punctuation and CJK characters. Each word is split into the
// longest tokens of the vocabulary, from the left; a word that cannot be split completely becomes the unknown token.
// Source: BERT (arXiv:1810.04805) and its tokenization.py. GGUF writes U+2581 before tokens that begin a word and
// nothing before those that continue one. Thread-safety: immutable once made.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace millrace::text {

/// Normalisation of a text before it is split.
struct WordNormalizer {
  bool lower_case = true;
  bool strip_accents = true;  // canonical decomposition, then non-spacing marks are removed
};

class WordPieceTokenizer final : public Tokenizer {
 public:
  /// Errors: corrupt, not_found.
  static Expected<std::shared_ptr<const Tokenizer>> make(const modelfile::Model& model);

  std::vector<TokenId> encode(std::string_view utf8, Specials specials) const override;
  std::vector<TokenId> encode(const MarkedText& text) const override;
  std::string token_bytes(TokenId id, bool with_specials) const override;
  std::optional<TokenId> special(std::string_view text) const override { return vocabulary_.special(text); }

 private:
  class Words;
  explicit WordPieceTokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  Status read_specials(const modelfile::Model& model);
  Status read_normalizer(const modelfile::Model& model);
  std::vector<TokenId> encode_parts(const std::vector<TextPart>& parts) const;
  void encode_word(std::string_view word, std::vector<TokenId>& ids) const;
  TokenId longest(std::string_view text, std::string_view before) const;

  Vocabulary vocabulary_;
  WordNormalizer normalizer_;
  TokenId unknown_ = -1;
};

}  // namespace millrace::text

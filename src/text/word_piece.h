// WordPiece tokenizers ("bert" in tokenizer.ggml.model): text is cleaned, lower-cased and rid of accents where the file
// says so, and cut into words at white space, punctuation and CJK characters. Each word becomes the longest tokens that
// the vocabulary has, from the left; a word that some part of is none becomes the unknown token as a whole. Source:
// BERT (arXiv:1810.04805) and its tokenization.py. GGUF writes U+2581 before tokens that begin a word and nothing
// before those that go on. Thread-safety: immutable once made.
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

/// What happens to a text before it is cut.
struct WordNormalizer {
  bool lower_case = true;
  bool strip_accents = true;  // canonical decomposition, and marks without a width of their own are left out
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

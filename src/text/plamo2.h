// PLaMo 2's and 3's tokenizers ("plamo2" in tokenizer.ggml.model): a text becomes the sequence of tokens with the
// highest sum of scores, in ten-thousandths; characters without a token become their bytes' tokens. Nothing is
// normalised. Source: the tokenizer published with PLaMo 2 (2025); keys as llama.cpp's converter writes them.
// Thread-safety: immutable once made.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace millrace::text {

class Plamo2Tokenizer final : public Tokenizer {
 public:
  /// Errors: corrupt, not_found.
  static Expected<std::shared_ptr<const Tokenizer>> make(const modelfile::Model& model);

  std::vector<TokenId> encode(std::string_view utf8, Specials specials) const override;
  std::vector<TokenId> encode(const MarkedText& text) const override;
  std::string token_bytes(TokenId id, bool with_specials) const override;
  std::optional<TokenId> special(std::string_view text) const override { return vocabulary_.special(text); }

 private:
  explicit Plamo2Tokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  Status read_costs(const modelfile::Model& model);
  Status find_bytes();
  std::vector<TokenId> encode_parts(const std::vector<TextPart>& parts) const;
  void encode_text(std::string_view text, std::vector<TokenId>& ids) const;

  Vocabulary vocabulary_;
  std::vector<std::int32_t> costs_;  // [vocab]: less its score in ten-thousandths; kNever: text never becomes it
  std::array<TokenId, 256> bytes_{};
};

}  // namespace millrace::text

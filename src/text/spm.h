// SentencePiece-style tokenizers: text is not split into words first, spaces are written as U+2581, and characters
// without a piece become byte tokens. With "llama" in tokenizer.ggml.model the pieces have scores, and of two
// neighbours the pair with the best score merges first; with "gemma4" the file lists the merges. Source: Kudo and
// Richardson 2018 (SentencePiece), its BPE mode. Thread-safety: immutable once made.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "text/borders.h"
#include "text/merge.h"
#include "text/merge_table.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace millrace::text {

class SpmTokenizer final : public Tokenizer {
 public:
  /// What the file lists of its pieces, and which model it names: "llama" has scores, "gemma4" merges.
  enum class Order { scores, merges };
  /// Errors: corrupt, not_found.
  static Expected<std::shared_ptr<const Tokenizer>> make(const modelfile::Model& model, Order order);

  std::vector<TokenId> encode(std::string_view utf8, Specials specials) const override;
  std::vector<TokenId> encode(const MarkedText& text) const override;
  std::string token_bytes(TokenId id, bool with_specials) const override;
  std::optional<TokenId> special(std::string_view text) const override { return vocabulary_.special(text); }

 private:
  struct Scratch;
  SpmTokenizer(Vocabulary vocabulary, const SpecialTokens& specials);
  std::vector<TokenId> encode_parts(const std::vector<TextPart>& parts) const;
  void encode_text(std::string_view escaped, Scratch& scratch, std::vector<TokenId>& ids) const;
  void encode_plain(std::string_view text, bool space_before, Scratch& scratch, std::vector<TokenId>& ids) const;
  void encode_run(std::string_view run, Scratch& scratch, std::vector<TokenId>& ids) const;
  void push_bytes(std::string_view bytes, std::vector<TokenId>& ids) const;
  void find_byte_tokens();

  Vocabulary vocabulary_;
  Borders borders_;
  std::vector<std::uint32_t> ranks_;  // [vocab], 0 is the best score; equal scores share a rank. Empty with merges.
  std::optional<MergeTable> merges_;
  std::array<TokenId, 256> byte_ids_{};  // -1: no token for this byte
  std::optional<TokenId> unknown_;
};

}  // namespace millrace::text

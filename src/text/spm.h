// SentencePiece-style tokenizers ("llama" in tokenizer.ggml.model): pieces with scores, of two neighbours the pair with
// the best score merges first, and what is no piece falls back to byte tokens. Spaces are written as U+2581.
// Source: Kudo and Richardson 2018 (SentencePiece), its BPE mode.
// Thread-safety: immutable once made.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "text/merge.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace millrace::text {

class SpmTokenizer final : public Tokenizer {
 public:
  /// Errors: corrupt, not_found.
  static Expected<std::shared_ptr<const Tokenizer>> make(const modelfile::Model& model);

  std::vector<TokenId> encode(std::string_view utf8, Specials specials) const override;
  std::vector<TokenId> encode(const MarkedText& text) const override;
  std::string token_bytes(TokenId id, bool with_specials) const override;
  std::optional<TokenId> special(std::string_view text) const override { return vocabulary_.special(text); }

 private:
  struct Scratch;
  SpmTokenizer(Vocabulary vocabulary, std::vector<std::uint32_t> ranks, const SpecialTokens& specials);
  std::vector<TokenId> encode_fragments(const std::vector<Fragment>& fragments) const;
  void encode_text(std::string_view escaped, Scratch& scratch, std::vector<TokenId>& ids) const;
  void encode_run(std::string_view run, Scratch& scratch, std::vector<TokenId>& ids) const;
  void push_bytes(std::string_view bytes, std::vector<TokenId>& ids) const;
  void find_byte_tokens();
  bool pieces_begin_at_spaces() const;

  Vocabulary vocabulary_;
  std::vector<std::uint32_t> ranks_;     // [vocab], 0 is the best score; equal scores share a rank
  std::array<TokenId, 256> byte_ids_{};  // -1: no token for this byte
  std::optional<TokenId> unknown_;
  bool cut_at_spaces_ = false;  // no piece has a space after another character, so none reaches over that border
};

}  // namespace millrace::text

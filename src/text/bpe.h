// Byte-level BPE ("gpt2" in tokenizer.ggml.model). Source: Radford et al. 2019 (GPT-2) and its published encoder.
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
#include "text/merge_table.h"
#include "text/pretokenizer.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace millrace::text {

class BpeTokenizer final : public Tokenizer {
 public:
  /// Errors: unsupported (an unknown pre-tokenizer, named), corrupt, not_found.
  static Expected<std::shared_ptr<const Tokenizer>> make(const modelfile::Model& model);

  std::vector<TokenId> encode(std::string_view utf8, Specials specials) const override;
  std::vector<TokenId> encode(const MarkedText& text) const override;
  std::string token_bytes(TokenId id, bool with_specials) const override;
  std::optional<TokenId> special(std::string_view text) const override { return vocabulary_.special(text); }

 private:
  struct Scratch;
  BpeTokenizer(Vocabulary vocabulary, MergeTable merges, PreTokenizer pretokenizer, const PreTokenizerFamily& family,
               const SpecialTokens& specials);
  std::vector<TokenId> encode_parts(const std::vector<TextPart>& parts) const;
  void encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& ids) const;
  void push_missing_byte(std::vector<TokenId>& ids) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  PreTokenizer pretokenizer_;
  PreTokenizerFamily::Habits habits_;
  std::optional<TokenId> unknown_;
  std::array<TokenId, 256> byte_ids_{};  // -1: no token for this byte
};

}  // namespace millrace::text

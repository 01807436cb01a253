// Finds BOS, EOS, end of turn and similar tokens, by the metadata's ids, or by well-known texts if a file lacks them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "text/vocabulary.h"

namespace millrace::text {

struct SpecialTokens {
  std::optional<TokenId> bos, eos, unknown;
  std::vector<TokenId> ends;  // sorted: EOS, end of turn, end of message, end of file; generation stops at each
  std::optional<FillTokens> fill;
};

/// True for a text that ends a turn in some family of models ("<|im_end|>"): a user-defined token of that text counts
/// as a control token.
bool is_end_text(std::string_view text);

/// Errors: corrupt (an id outside the vocabulary, named).
Expected<SpecialTokens> find_special_tokens(const modelfile::Model& model, const Vocabulary& vocabulary);

}  // namespace millrace::text

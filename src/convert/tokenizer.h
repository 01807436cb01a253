// Converts tokenizer.json, tokenizer_config.json, generation_config.json and a chat template to GGUF's keys and back.
// Sources: the tokenizers library's file format; the GGUF specification. Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "convert/config.h"
#include "convert/header.h"

namespace millrace::convert {

/// Sets "tokenizer." keys (and "general.sampling." ones) from a checkpoint's folder. `rows`: of the embedding; rows
/// beyond the vocabulary become padding tokens. `pre`: the family's pre-tokenizer, chosen if several split alike.
/// Errors: not_found (tokenizer.json), unsupported (a kind of tokenizer, named), corrupt.
Status read_tokenizer(const std::string& folder, const Config& config, std::int64_t rows, std::string_view pre,
                      Metadata& metadata);

/// Writes these files into a folder. Errors: unsupported (a kind of vocabulary), corrupt, io_error.
Status write_tokenizer(const Metadata& metadata, const std::string& folder);

}  // namespace millrace::convert

// Finds the named pre-tokenizer that splits text as a tokenizer.json does. Published files spell the same patterns in
// many ways, so results are compared, not spellings: on every sequence of up to three characters from each class that
// any pattern distinguishes, and on long random sequences of them. Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace millrace::convert {

/// The name (of text/pretokenizer.h) for a byte-level tokenizer.json. `preferred`: chosen if several split alike.
/// Errors: unsupported (a kind of pre-tokenizer or normalizer, named; a split that no known one makes), corrupt.
Expected<std::string> match_pretokenizer(const nlohmann::json& tokenizer, std::string_view preferred);

/// The inverse: a "pre_tokenizer" that splits as the named one does. Errors: unsupported (no such name).
Expected<nlohmann::json> pretokenizer_json(std::string_view name);

}  // namespace millrace::convert

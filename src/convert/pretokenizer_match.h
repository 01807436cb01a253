// Which of the pre-tokenizers that have a name cuts text as a tokenizer.json says. Published files spell one thing in
// many ways, so what they do is compared, not how they are written: on every row of up to three characters of each kind
// that any of the patterns tells apart, and on long ones drawn from them. Thread-safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::convert {

/// The name (of text/pretokenizer.h) for a byte-level tokenizer.json. `preferred`: taken where several are alike.
/// Errors: unsupported (a kind of pre-tokenizer or normalizer, named; cuts that no known one makes), corrupt.
Expected<std::string> match_pretokenizer(const nlohmann::json& tokenizer, std::string_view preferred);

/// The way back: a "pre_tokenizer" that cuts as the named one does. Errors: unsupported (no such name).
Expected<nlohmann::json> pretokenizer_json(std::string_view name);

}  // namespace millrace::convert

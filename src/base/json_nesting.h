// The nesting depth of JSON. The JSON library copies and writes values recursively, so deep nesting would overflow the
// stack.
// Thread-safety: pure.
#pragma once

#include <string_view>

namespace millrace {

constexpr int kMostNesting = 100;

/// Whether `text` nests deeper than kMostNesting, the limit for answers, arguments and files.
bool nests_too_deep(std::string_view json);

}  // namespace millrace

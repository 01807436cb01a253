// The terminals of Lark's library `common`. Source: lark/grammars/common.lark. Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string_view>

namespace millrace::text {

/// The regular expression of a terminal; nullopt: unknown.
std::optional<std::string_view> lark_common_terminal(std::string_view name);

}  // namespace millrace::text

// How deep brackets of JSON nest: libraries copy and write what they read from it by recursion.
// Thread-safety: pure.
#pragma once

#include <string_view>

namespace millrace {

constexpr int kMostNesting = 100;

/// Whether brackets nest deeper than answers, arguments and files may: kMostNesting.
bool nests_too_deep(std::string_view json);

}  // namespace millrace

// JSON of files that anybody may have written. Thread-safety: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace millrace::residency {

/// What lies deeper than `depth` is left out as it comes: copying or writing the result goes no deeper than that. A
/// value that is_discarded() where the text is no JSON.
template <typename Json>
Json parse_shallow(std::string_view text, int depth) {
  const auto near = [depth](int at, typename Json::parse_event_t, Json&) { return at <= depth; };
  return Json::parse(text, near, /*allow_exceptions=*/false);
}

}  // namespace millrace::residency

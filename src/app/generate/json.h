// JSON that somebody else wrote, into the values that the APIs work with.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/json_nesting.h"

namespace millrace::generate {

using Json = nlohmann::ordered_json;

/// Parses in n log n, whatever it holds: nlohmann's own parser looks each key of an object up among all before it. Of
/// keys that stand twice the last value counts, at the first one's place, as there. What is no JSON,
/// or nests too deep: is_discarded(), and `bad_at` is the byte where that shows. Half a surrogate pair, which
/// JavaScript writes where it cuts a text, becomes U+FFFD.
Json parse_json(std::string_view text, std::size_t* bad_at = nullptr);

/// A text field of an object; empty where there is none.
std::string word(const Json& object, const char* name);

/// An object with more members is no business of who looks each up among the others.
constexpr std::size_t kMostMembers = 4096;
/// Whether the value has such an object.
bool is_wide(const Json& value);

}  // namespace millrace::generate

// The parts of URIs that references in schemas need. Source: RFC 3986. Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace millrace::text {

/// What `reference` means beside `base`, both without fragments (section 5.2). An empty base: the reference alone.
std::string joined_uri(std::string_view base, std::string_view reference);

/// "a%20b" is "a b"; a % that begins no such escape stays.
std::string percent_decoded(std::string_view text);

}  // namespace millrace::text

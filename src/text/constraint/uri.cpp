#include "text/constraint/uri.h"

#include <algorithm>
#include <charconv>

namespace millrace::text {
namespace {

/// How many bytes the scheme takes with its colon; 0: there is none.
std::size_t scheme_of(std::string_view uri) {
  const std::size_t colon = uri.find(':');
  return colon == std::string_view::npos || colon > uri.find_first_of("/?#") ? 0 : colon + 1;
}

/// Scheme and authority: what comes before the path.
std::size_t head_of(std::string_view uri) {
  const std::size_t scheme = scheme_of(uri);
  if (!uri.substr(scheme).starts_with("//")) return scheme;
  return std::min(uri.find_first_of("/?", scheme + 2), uri.size());
}

/// Without "." and ".." (section 5.2.4).
std::string without_dots(std::string_view path) {
  std::string result;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/', 1), path.size());
    const std::string_view step = path.substr(0, end);
    path.remove_prefix(end);
    const bool up = step == "/..", here = step == "/.";
    if (!up && !here) {
      result += step;
      continue;
    }
    if (up) result.resize(result.rfind('/') == std::string::npos ? 0 : result.rfind('/'));
    if (path.empty()) result += '/';
  }
  return result;
}

}  // namespace

std::string joined_uri(std::string_view base, std::string_view reference) {
  if (reference.empty()) return std::string(base);
  if (base.empty() || scheme_of(reference) > 0) return std::string(reference);
  if (reference.starts_with("//")) return std::string(base.substr(0, scheme_of(base))) + std::string(reference);
  const std::size_t head = head_of(base), path_end = std::min(base.find('?'), base.size());
  const std::size_t query = std::min(reference.find('?'), reference.size());
  std::string path(reference.substr(0, query));
  if (path.empty()) {
    path = base.substr(head, path_end - head);
  } else if (path[0] != '/') {
    const std::string_view own = base.substr(head, path_end - head);
    const std::size_t slash = own.rfind('/');
    const bool authority = head > scheme_of(base);
    path.insert(0, slash == std::string_view::npos ? (authority ? "/" : "") : own.substr(0, slash + 1));
  }
  if (path.starts_with("./")) path.erase(0, 2);
  return std::string(base.substr(0, head)) + without_dots(path) + std::string(reference.substr(query));
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* const digits = text.data() + i + 1;
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2;
    decoded += escape ? static_cast<char>(value) : text[i];
    if (escape) i += 2;
  }
  return decoded;
}

}  // namespace millrace::text

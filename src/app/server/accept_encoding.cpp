#include "app/server/accept_encoding.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/words.h"

namespace millrace::server {

namespace {

/// Takes what stands before the next `border` off the front.
std::string_view next(std::string_view& text, char border) {
  const auto end = std::min(text.find(border), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return trim(part);
}

/// "0.5", "1", "0.": more than nothing.
bool is_above_0(std::string_view weight) {
  const bool number = !weight.empty() && weight.find_first_not_of("0123456789.") == std::string_view::npos;
  return number && weight.find_first_of("123456789") != std::string_view::npos;
}

}  // namespace

bool accepts_coding(std::string_view accepted, std::string_view coding) {
  std::optional<bool> named, any;
  while (!accepted.empty()) {
    std::string_view item = next(accepted, ',');
    const std::string_view name = next(item, ';');
    bool takes = true;
    while (!item.empty()) {
      std::string_view parameter = next(item, ';');
      if (same_word(next(parameter, '='), "q")) takes = is_above_0(trim(parameter));
    }
    if (same_word(name, coding)) named = named.value_or(true) && takes;
    if (name == "*") any = any.value_or(true) && takes;
  }
  return named.value_or(any.value_or(false));
}

void keep_accepted_codings(httplib::Request& request) {
  std::string accepted;
  const auto [first, last] = request.headers.equal_range("Accept-Encoding");
  for (auto header = first; header != last; ++header) accepted += header->second + ",";
  std::string kept;
  for (const char* coding : {"br", "gzip"})
    if (accepts_coding(accepted, coding)) kept += (kept.empty() ? "" : ", ") + std::string(coding);
  request.headers.erase("Accept-Encoding");
  if (!kept.empty()) request.headers.emplace("Accept-Encoding", kept);
}

}  // namespace millrace::server

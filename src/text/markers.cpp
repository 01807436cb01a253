#include "text/markers.h"

#include <fmt/core.h>

#include <charconv>

namespace millrace::text {

Markers::Markers(std::uint64_t number) : prefix_(fmt::format("[inserted {:016x} ", number)) {}

std::string Markers::marker(std::size_t index) const { return fmt::format("{}{}]", prefix_, index); }

std::optional<Markers::Found> Markers::find(std::string_view text, std::size_t from) const {
  if (prefix_.empty()) return std::nullopt;
  for (std::size_t at = text.find(prefix_, from); at != std::string_view::npos; at = text.find(prefix_, at + 1)) {
    std::size_t index = 0;
    const char* const end = text.data() + text.size();
    const auto [behind, problem] = std::from_chars(text.data() + at + prefix_.size(), end, index);
    if (problem != std::errc() || behind == end || *behind != ']') continue;
    return Found{at, static_cast<std::size_t>(behind - text.data()) + 1, index};
  }
  return std::nullopt;
}

}  // namespace millrace::text

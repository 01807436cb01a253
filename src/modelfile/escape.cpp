#include "modelfile/escape.h"

#include <fmt/core.h>

#include <cstdint>

namespace millrace::modelfile {
namespace {

struct Decoded {
  std::uint32_t point = 0;
  std::size_t length = 0;  // 0: not UTF-8
};

/// The character at the front of `text` (not empty). Overlong forms, surrogates and points past U+10FFFF are invalid.
Decoded decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xF0 && lead < 0xF8 ? 4 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xC2 ? 2 : 0;
  if (length == 0 || lead >= 0xF8 || text.size() < length) return {};
  std::uint32_t point = lead & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    point = point << 6 | (byte(i) & 0x3Fu);
  }
  constexpr std::uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (point < smallest[length] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) return {};
  return {point, length};
}

bool is_unsafe(std::uint32_t point) {
  return (point >= 0x80 && point < 0xA0) || (point >= 0x200E && point <= 0x200F) ||
         (point >= 0x2028 && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069) || point == 0x061C;
}

}  // namespace

std::string escape(std::string_view text, std::size_t max_characters) {
  std::string out;
  out.reserve(text.size() < 4096 ? text.size() : 4096);
  for (std::size_t characters = 0; !text.empty(); ++characters) {
    if (max_characters > 0 && characters == max_characters) return out + "...";
    const Decoded next = decode(text);
    if (next.length == 0) {
      out += fmt::format("\\x{:02x}", static_cast<std::uint8_t>(text[0]));
    } else if (next.point == '\n') {
      out += "\\n";
    } else if (next.point == '\t') {
      out += "\\t";
    } else if (next.point == '\r') {
      out += "\\r";
    } else if (next.point == '\\') {
      out += "\\\\";
    } else if (next.point < 0x20 || next.point == 0x7F) {
      out += fmt::format("\\x{:02x}", next.point);
    } else if (is_unsafe(next.point)) {
      out += fmt::format("\\u{:04x}", next.point);
    } else {
      out += text.substr(0, next.length);
    }
    text.remove_prefix(next.length == 0 ? 1 : next.length);
  }
  return out;
}

}  // namespace millrace::modelfile

#include "base/base64.h"

#include <array>
#include <cstdint>

namespace millrace {
namespace {

constexpr std::uint8_t kBreak = 64, kNoLetter = 65;

constexpr std::array<std::uint8_t, 256> values() {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<std::uint8_t, 256> all = {};
  for (std::uint8_t& one : all) one = kNoLetter;
  for (std::size_t i = 0; i < letters.size(); ++i)
    all[static_cast<unsigned char>(letters[i])] = static_cast<std::uint8_t>(i);
  all['\r'] = all['\n'] = kBreak;
  return all;
}

}  // namespace

std::optional<std::string> from_base64(std::string_view text) {
  static constexpr std::array<std::uint8_t, 256> kValues = values();
  while (text.ends_with('=') || text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::uint8_t value = kValues[static_cast<unsigned char>(c)];
    if (value == kBreak) continue;
    if (value == kNoLetter) return std::nullopt;
    bits = bits << 6 | value;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 255u);
  }
  return out;
}

}  // namespace millrace

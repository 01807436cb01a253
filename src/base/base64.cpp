#include "base/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace millrace {
namespace {

constexpr std::uint8_t kBreak = 64, kNoLetter = 65;

constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::uint8_t, 256> values() {
  std::array<std::uint8_t, 256> all = {};
  for (std::uint8_t& one : all) one = kNoLetter;
  for (std::size_t i = 0; i < kLetters.size(); ++i)
    all[static_cast<unsigned char>(kLetters[i])] = static_cast<std::uint8_t>(i);
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

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(bytes.size() - at, 3);
    unsigned bits = 0;
    for (std::size_t i = 0; i < 3; ++i) bits = bits << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i) out += i <= count ? kLetters[bits >> (18 - 6 * i) & 63u] : '=';
  }
  return out;
}

}  // namespace millrace

#include "base/base64.h"

namespace millrace {

std::optional<std::string> from_base64(std::string_view text) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    const auto place = kLetters.find(c);
    if (place == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<unsigned>(place);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 255u);
  }
  return out;
}

}  // namespace millrace

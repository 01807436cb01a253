#include "text/charsmap.h"

namespace millrace::text {
namespace {

constexpr std::uint32_t kLabel = 0x800000FF, kValue = 0x7FFFFFFF, kHasLeaf = 1u << 8;

constexpr std::size_t kLongestReplacement = 1024;  // bytes

std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

Expected<Charsmap> Charsmap::make(const std::vector<std::int64_t>& bytes) {
  constexpr std::size_t kWord = sizeof(std::uint32_t);
  const auto byte = [&](std::size_t at) { return static_cast<std::uint32_t>(bytes[at] & 0xFF); };
  const auto word = [&](std::size_t at) {
    return byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24;
  };
  Charsmap map;
  if (bytes.empty()) return map;
  const std::size_t size = bytes.size() < kWord ? 0 : word(0);
  if (size == 0 || size % kWord != 0 || size > bytes.size() - kWord)
    return error(Code::corrupt,
                 "tokenizer.ggml.precompiled_charsmap has {} bytes, which hold no map; get the file again",
                 bytes.size());
  for (std::size_t at = kWord; at < kWord + size; at += kWord) map.units_.push_back(word(at));
  for (std::size_t at = kWord + size; at < bytes.size(); ++at) map.replacements_ += static_cast<char>(byte(at));
  map.replacements_ += '\0';
  // No Unicode character needs a longer replacement; a damaged file must not make texts grow.
  std::size_t length = 0;
  for (const char c : map.replacements_) {
    length = c == '\0' ? 0 : length + 1;
    if (length > kLongestReplacement)
      return error(Code::corrupt,
                   "tokenizer.ggml.precompiled_charsmap replaces a character by more than {} bytes; get the file again",
                   kLongestReplacement);
  }
  return map;
}

Charsmap::Match Charsmap::longest(std::string_view text) const {
  Match match;
  if (units_.empty()) return match;
  std::uint32_t at = offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto label = static_cast<unsigned char>(text[i]);
    at ^= label;
    if (at >= units_.size() || (units_[at] & kLabel) != label) break;
    const std::uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if ((unit & kHasLeaf) == 0 || at >= units_.size()) continue;
    const std::size_t begin = units_[at] & kValue;
    if (begin >= replacements_.size()) break;
    match = {i + 1, std::string_view(replacements_.data() + begin)};
  }
  return match;
}

}  // namespace millrace::text

#include "text/borders.h"

#include <cstring>

#include "text/utf8.h"

namespace millrace::text {

namespace {

std::uint32_t packed(std::string_view character) {
  std::uint32_t bytes = 0;
  std::memcpy(&bytes, character.data(), character.size());
  return bytes;
}

}  // namespace

std::string_view first_character(std::string_view text) {
  if (static_cast<unsigned char>(text[0]) < 0x80) return text.substr(0, 1);
  const Utf8Step step = next_utf8(text);
  return text.substr(0, step.kind == Utf8Kind::character ? step.bytes : 1);
}

Borders::Borders(const Vocabulary& vocabulary) {
  std::size_t words = 64;
  while (words * 4 < static_cast<std::size_t>(vocabulary.size())) words *= 2;
  joined_.assign(words, 0);
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.hidden(id) || vocabulary.type(id) == TokenType::byte) continue;
    std::string_view token = vocabulary.text(id);
    if (token.empty()) continue;
    std::string_view left = first_character(token);
    for (token.remove_prefix(left.size()); !token.empty(); token.remove_prefix(left.size())) {
      const std::string_view right = first_character(token);
      const std::size_t bit = place(packed(left), packed(right));
      joined_[bit / 64] |= std::uint64_t{1} << (bit % 64);
      left = right;
    }
  }
}

std::size_t Borders::place(std::uint32_t left, std::uint32_t right) const {
  const std::uint64_t key = (static_cast<std::uint64_t>(left) << 32) | right;
  const std::uint64_t mixed = key * 0x9E3779B97F4A7C15u;
  return static_cast<std::size_t>(mixed ^ (mixed >> 32)) & (joined_.size() * 64 - 1);
}

std::size_t Borders::next(std::string_view text) const {
  if (text.empty()) return 0;
  std::string_view left = first_character(text);
  for (std::size_t at = left.size(); at < text.size(); at += left.size()) {
    const std::string_view right = first_character(text.substr(at));
    const std::size_t bit = place(packed(left), packed(right));
    if ((joined_[bit / 64] >> (bit % 64) & 1) == 0) return at;
    left = right;
  }
  return text.size();
}

}  // namespace millrace::text

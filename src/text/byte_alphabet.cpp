#include "text/byte_alphabet.h"

#include <array>

#include "text/utf8.h"

namespace millrace::text {

namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

constexpr int kCodePoints = 256 + 68;

/// Code point to byte; -1 where the alphabet has no such character.
constexpr std::array<short, kCodePoints> make_byte_table() {
  std::array<short, kCodePoints> table{};
  for (auto& entry : table) entry = -1;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    table[static_cast<std::size_t>(stands_for_itself(byte) ? byte : next++)] = static_cast<short>(byte);
  }
  return table;
}

constexpr auto kByteOf = make_byte_table();

}  // namespace

bool append_alphabet_bytes(std::string_view word, std::string& out) {
  const std::size_t old_size = out.size();
  while (!word.empty()) {
    const Utf8Step step = next_utf8(word);
    const char32_t code_point =
        step.kind == Utf8Kind::character ? decode_utf8(word.substr(0, step.bytes)) : kCodePoints;
    if (code_point >= kCodePoints || kByteOf[code_point] < 0) {
      out.resize(old_size);
      return false;
    }
    out.push_back(static_cast<char>(kByteOf[code_point]));
    word.remove_prefix(step.bytes);
  }
  return true;
}

std::string alphabet_character(unsigned char byte) {
  std::string out;
  for (std::size_t code_point = 0; code_point < kByteOf.size(); ++code_point) {
    if (kByteOf[code_point] == byte) append_utf8(static_cast<char32_t>(code_point), out);
  }
  return out;
}

}  // namespace millrace::text

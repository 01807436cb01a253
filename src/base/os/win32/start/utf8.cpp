// The C library's text of many bytes is UTF-8 in every program, as the manifest's code page is. msvcrt knows no such
// locale, and libstdc++ converts a path of narrow characters by these functions: without them
// std::filesystem::path("ü") names another file. All three are here because the C library has them in one object.
#include <cstddef>
#include <cstdint>
#include <cwchar>

namespace {

constexpr std::size_t kInvalid = static_cast<std::size_t>(-1), kIncomplete = static_cast<std::size_t>(-2);

/// Bytes of the character that begins with this one; 0: none does.
std::size_t length_of(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/// The next unit of UTF-16, and how many bytes it took. A character of two units gives the second with its last byte;
/// meanwhile `rest` is that unit.
std::size_t next_unit(wchar_t& unit, const char* text, std::size_t bytes, mbstate_t& rest) {
  if (bytes == 0) return kIncomplete;
  if (rest != 0) {
    unit = static_cast<wchar_t>(rest);
    rest = 0;
    return 1;
  }
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = length_of(byte(0));
  if (length == 0) return kInvalid;
  std::uint32_t code = length == 1 ? byte(0) : byte(0) & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (i >= bytes) return kIncomplete;
    if ((byte(i) & 0xc0) != 0x80) return kInvalid;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return kInvalid;
  if (code < 0x10000) {
    unit = static_cast<wchar_t>(code);
    return code == 0 ? 0 : length;
  }
  unit = static_cast<wchar_t>(0xd800 + ((code - 0x10000) >> 10));
  rest = static_cast<mbstate_t>(0xdc00 + ((code - 0x10000) & 0x3ff));
  return length - 1;
}

}  // namespace

extern "C" {

std::size_t mbrtowc(wchar_t* out, const char* text, std::size_t bytes, mbstate_t* state) {
  static thread_local mbstate_t own = 0;
  wchar_t unit = 0;
  if (text == nullptr) return 0;
  const std::size_t taken = next_unit(unit, text, bytes, state != nullptr ? *state : own);
  if (out != nullptr && taken < kIncomplete) *out = unit;
  return taken;
}

std::size_t mbrlen(const char* text, std::size_t bytes, mbstate_t* state) {
  static thread_local mbstate_t own = 0;
  return mbrtowc(nullptr, text, bytes, state != nullptr ? state : &own);
}

std::size_t mbsrtowcs(wchar_t* out, const char** text, std::size_t units, mbstate_t* state) {
  mbstate_t own = 0;
  const char* from = *text;
  std::size_t count = 0;
  for (; out == nullptr || count < units; ++count) {
    wchar_t unit = 0;
    const std::size_t taken = next_unit(unit, from, 4, state != nullptr ? *state : own);  // ends at a zero by itself
    if (taken >= kIncomplete) return kInvalid;
    if (out != nullptr) out[count] = unit;
    if (taken == 0) {
      if (out != nullptr) *text = nullptr;
      return count;
    }
    from += taken;
  }
  *text = from;
  return count;
}
}

// The printable alphabet of byte-level BPE vocabularies: one character per byte, so that no token contains a space or a
// control character. Printable Latin-1 bytes map to themselves, the other 68 to U+0100 and up, in order. Source:
// GPT-2's published byte encoder. Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace millrace::text {

/// Decodes `word` (a token as the file spells it) and appends the bytes. False, with `out` unchanged, if a character is
/// not in the alphabet.
bool append_alphabet_bytes(std::string_view word, std::string& out);

/// The character of `byte`, in UTF-8.
std::string alphabet_character(unsigned char byte);

}  // namespace millrace::text

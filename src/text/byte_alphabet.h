// The printable alphabet in which byte-level BPE vocabularies are written: one character a byte, so that no token holds
// a space or a control character. Printable Latin-1 bytes stand for themselves; the 68 others are U+0100 and up, in
// order. Source: GPT-2's published byte encoder.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace millrace::text {

/// Appends the bytes that `word` (a token as the file writes it) stands for. False, with `out` unchanged, if a
/// character is not of the alphabet.
bool append_alphabet_bytes(std::string_view word, std::string& out);

/// The character of `byte`, in UTF-8.
std::string alphabet_character(unsigned char byte);

}  // namespace millrace::text

// Finds where text can be cut before merging: a merge never crosses two characters that are adjacent in no token. Long
// texts of vocabularies without pre-tokenization (SentencePiece) are split into short runs this way, with the same
// tokens. Thread-safety: immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace millrace::text {

class Borders {
 public:
  explicit Borders(const Vocabulary& vocabulary);

  /// The first cut in `text` after its first character; text.size() if there is none. May miss some cuts, because pairs
  /// of characters are kept in a hashed bit set (two bytes per token).
  std::size_t next(std::string_view text) const;

 private:
  std::size_t place(std::uint32_t left, std::uint32_t right) const;

  std::vector<std::uint64_t>
      joined_;  // a power of two of words; a bit is set for each pair of characters adjacent in a token
};

/// The bytes of the first character of `text`; one byte if it is invalid. REQUIRES: not empty.
std::string_view first_character(std::string_view text);

}  // namespace millrace::text

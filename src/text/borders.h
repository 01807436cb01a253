// Where text may be cut before it is merged: between two characters that stand side by side in no token, no merge ever
// reaches over. Long texts without words of their own ("SentencePiece") fall into short runs that way, with the same
// tokens.
// Thread-safety: immutable once made.
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

  /// The first cut in `text` after its first character; text.size() if there is none. May miss some: the pairs of
  /// characters are kept as bits at their hashes (two bytes a token).
  std::size_t next(std::string_view text) const;

 private:
  std::size_t place(std::uint32_t left, std::uint32_t right) const;

  std::vector<std::uint64_t> joined_;  // a power of two of words; a bit is set where two characters meet in a token
};

/// The character at the beginning of `text`: its bytes. One byte where they make no character. REQUIRES: not empty.
std::string_view first_character(std::string_view text);

}  // namespace millrace::text

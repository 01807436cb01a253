// SentencePiece's precompiled character map, a double array: the parts of a text that a tokenizer replaces before it
// splits the text. Source: sentencepiece's normalizer.cc and darts-clone's layout of units. Thread-safety: immutable
// once made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::text {

class Charsmap {
 public:
  /// An empty map: every character is kept.
  Charsmap() = default;
  /// `bytes`: the size of the units in bytes (uint32), the units, and the zero-terminated replacements. Errors:
  /// corrupt.
  static Expected<Charsmap> make(const std::vector<std::int64_t>& bytes);

  struct Match {
    std::size_t bytes = 0;  // of the text; 0: no replacement here
    std::string_view by;
  };
  /// The longest match at the beginning of `text`.
  Match longest(std::string_view text) const;

 private:
  std::vector<std::uint32_t> units_;
  std::string replacements_;  // zero-terminated
};

}  // namespace millrace::text

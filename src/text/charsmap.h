// SentencePiece's precompiled character map: which pieces of a text a tokenizer replaces before it cuts it, as a double
// array. Source: sentencepiece's normalizer.cc and darts-clone's layout of units.
// Thread-safety: immutable once made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::text {

class Charsmap {
 public:
  /// None: every character stays.
  Charsmap() = default;
  /// `bytes`: how many bytes the units have (uint32), the units, the replacements, each ended by a zero. Errors:
  /// corrupt.
  static Expected<Charsmap> make(const std::vector<std::int64_t>& bytes);

  struct Match {
    std::size_t bytes = 0;  // of the text; 0: nothing is replaced here
    std::string_view by;
  };
  /// The longest piece that is replaced at the beginning of `text`.
  Match longest(std::string_view text) const;

 private:
  std::vector<std::uint32_t> units_;
  std::string replacements_;  // ends with a zero
};

}  // namespace millrace::text

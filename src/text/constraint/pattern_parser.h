// A regular expression of a JSON schema as a tree. Thread-safety: pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/constraint/regular.h"

namespace millrace::text {

struct PatternNode {
  /// The last four take no character: ^, $, \b or \B, (?=...) or (?!...).
  enum class Kind { characters, sequence, either, repeat, begin, end, border, look } kind = Kind::sequence;
  CharacterRanges ranges;          // characters
  std::vector<PatternNode> parts;  // of a sequence; options; what is repeated; what is looked for
  std::uint32_t least = 0, most = 0;
  bool negated = false;  // border, look
};

/// How a pattern is read.
struct PatternReading {
  /// What dialects of regular expressions see differently (\s, say) counts as what all of them take, or, if `wide`, as
  /// what any of them does: a pattern that must not match is read so.
  bool wide = false;
  bool any_case = false;             // letters stand for both of their cases: the flag i
  bool dot_is_all = false;           // . takes line ends, too: the flag s
  bool dot_is_line = false;          // . takes all but \n, as in Python and Rust; ECMA-262 knows more line ends
  std::size_t* failed_at = nullptr;  // set to the byte where the pattern is none
};

/// Errors: invalid_argument (no regular expression), unsupported (names what).
Expected<PatternNode> parse_pattern(std::string_view pattern, const PatternReading& reading = {});

/// With the other cases of all letters.
CharacterRanges any_case(const CharacterRanges& ranges);

/// Those of \w.
const CharacterRanges& word_characters();

}  // namespace millrace::text

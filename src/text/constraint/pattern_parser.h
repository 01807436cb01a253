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

/// What dialects of regular expressions see differently (\s, say) counts as what all of them take, or, if `wide`, as
/// what any of them does: a pattern that must not match is read so. Errors: invalid_argument (no regular expression),
/// unsupported (names what).
Expected<PatternNode> parse_pattern(std::string_view pattern, bool wide = false);

/// Those of \w.
const CharacterRanges& word_characters();

}  // namespace millrace::text

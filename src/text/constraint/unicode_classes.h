// The characters with a Unicode property, for \p{...} in patterns.
// Thread-safety: may be called from anywhere.
#pragma once

#include <string_view>

#include "text/constraint/regular.h"

namespace millrace::text {

/// General categories by their short and long names ("Lu", "L", "Uppercase_Letter"), "ASCII", "Any" and
/// what emoji are made of. Where versions of Unicode differ in old characters: what all have, or, if `wide`, what any
/// has. Empty: not known.
const CharacterRanges& characters_with(std::string_view property, bool wide = false);

}  // namespace millrace::text

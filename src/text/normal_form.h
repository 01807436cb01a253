// Unicode's normal form C, to which some tokenizers convert text first: a letter and the marks after it become one
// character if there is one. Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace millrace::text {

/// `text` in normal form C. Invalid UTF-8 is kept, and separates the text on its sides. Uses memory beyond the result
/// in proportion to the longest run of marks. Source: Unicode Standard Annex 15.
std::string compose(std::string_view text);

/// False if compose() cannot change the text: all characters are below the first mark, U+0300.
bool may_be_decomposed(std::string_view text);

}  // namespace millrace::text

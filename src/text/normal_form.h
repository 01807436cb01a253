// Unicode's normal form C, into which some tokenizers bring text before they cut it: letters and the marks after them
// become one character where there is one.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace millrace::text {

/// `text` in normal form C. Bytes that are not UTF-8 stay as they are and part what stands on their sides.
/// Memory beside the result in proportion to its longest run of marks. Source: Unicode Standard Annex 15.
std::string compose(std::string_view text);

/// Whether compose() has to be asked: false if all characters come before the first mark, U+0300.
bool may_be_decomposed(std::string_view text);

}  // namespace millrace::text

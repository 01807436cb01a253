#include "base/os/find.h"

#include <cstdint>
#include <vector>

namespace millrace::os {

// Knuth-Morris-Pratt. The C library here has no memmem(), and std::search takes time proportional to the product
// of both lengths in the worst case.
std::size_t find_word(std::string_view text, std::string_view word) {
  constexpr std::size_t kSimple = 4;  // the product is small, too
  if (word.size() <= kSimple || word.size() > text.size()) return text.find(word);
  std::vector<std::size_t> border(word.size());  // length of the longest proper prefix that ends at each position
  for (std::size_t i = 1, length = 0; i < word.size(); ++i) {
    while (length > 0 && word[i] != word[length]) length = border[length - 1];
    if (word[i] == word[length]) ++length;
    border[i] = length;
  }
  for (std::size_t i = 0, length = 0; i < text.size(); ++i) {
    while (length > 0 && text[i] != word[length]) length = border[length - 1];
    if (text[i] == word[length]) ++length;
    if (length == word.size()) return i + 1 - length;
  }
  return std::string_view::npos;
}

}  // namespace millrace::os

#include "base/os/find.h"

#include <cstring>

namespace millrace::os {

std::size_t find_word(std::string_view text, std::string_view word) {
  const void* const found = ::memmem(text.data(), text.size(), word.data(), word.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace millrace::os

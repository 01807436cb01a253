// Finding a word in text. Thread-safety: a function without shared state.
#pragma once

#include <cstddef>
#include <string_view>

namespace millrace::os {

/// Where the word begins in the text; npos: nowhere. Takes time with the sum of both lengths, whatever they hold.
std::size_t find_word(std::string_view text, std::string_view word);

}  // namespace millrace::os

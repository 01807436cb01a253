// Finding a word in text. Thread-safety: a function without shared state.
#pragma once

#include <cstddef>
#include <string_view>

namespace millrace::os {

/// The position of the word in the text, or npos. Takes linear time in the sum of both lengths for any input.
std::size_t find_word(std::string_view text, std::string_view word);

}  // namespace millrace::os

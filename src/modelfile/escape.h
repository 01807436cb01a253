// Makes text from a model file safe to print: names and strings may contain terminal escapes, line breaks, invalid
// UTF-8, or characters that reorder a line.
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace::modelfile {

/// `text` on one line: control characters, invalid UTF-8 and bidirectional controls become \n, \t, \x1b or \u202e, a
/// backslash becomes two. More than `max_characters` are cut and end in "..." (0: no limit).
std::string escape(std::string_view text, std::size_t max_characters = 0);

}  // namespace millrace::modelfile

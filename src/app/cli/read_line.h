// Lines typed at a terminal, edited and remembered with libedit.
#pragma once

#include <optional>
#include <string>

namespace millrace::cli {

/// Once, before the first line. Takes LC_CTYPE of the environment, or UTF-8 where that names another encoding.
void prepare_lines();

/// The line without its end. None at the end of input (Ctrl-D on an empty line), and once interrupted() is set.
std::optional<std::string> read_line(const char* prompt);

/// For the arrow keys. Several lines are remembered as one.
void remember_line(const std::string& line);

}  // namespace millrace::cli

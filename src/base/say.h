// Prints messages for people on stdout or stderr, and ignores write errors: a full disk below a log, or a closed
// terminal, must not end the program. (fmt::print throws if the stream cannot be written.) Thread-safe: a line is
// written by one call.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <utility>

namespace millrace {

template <typename... Args>
void say(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace millrace

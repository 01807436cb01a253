// Logging: one line per event on stderr, with the reason for every choice that the engine makes.
// Thread-safe. Only the program sets the level, once; the rooms of src/ do not.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace millrace::log {

enum class Level { debug, info, warn, error, off };

void set_level(Level level);
Level level();
void write(Level level, std::string_view line);

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::debug) write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::info) write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::warn) write(Level::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::error) write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace millrace::log

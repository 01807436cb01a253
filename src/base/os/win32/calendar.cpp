#include "base/os/calendar.h"

#include <cstdio>

namespace millrace::os {

std::optional<std::tm> local_time(std::time_t time) {
  std::tm parts{};
  if (::localtime_s(&parts, &time) != 0) return std::nullopt;
  return parts;
}

std::optional<std::tm> utc_time(std::time_t time) {
  std::tm parts{};
  if (::gmtime_s(&parts, &time) != 0) return std::nullopt;
  return parts;
}

std::optional<std::time_t> parse_utc(const std::string& text) {
  std::tm parts{};
  if (std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d", &parts.tm_year, &parts.tm_mon, &parts.tm_mday,
                  &parts.tm_hour, &parts.tm_min, &parts.tm_sec) != 6)
    return std::nullopt;
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  const std::time_t time = ::_mkgmtime64(&parts);
  if (time < 0) return std::nullopt;
  return time;
}

}  // namespace millrace::os

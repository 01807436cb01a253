#include "base/os/calendar.h"

namespace millrace::os {

std::optional<std::tm> local_time(std::time_t time) {
  std::tm parts{};
  if (::localtime_r(&time, &parts) == nullptr) return std::nullopt;
  return parts;
}

std::optional<std::tm> utc_time(std::time_t time) {
  std::tm parts{};
  if (::gmtime_r(&time, &parts) == nullptr) return std::nullopt;
  return parts;
}

std::optional<std::time_t> parse_utc(const std::string& text) {
  std::tm parts{};
  if (::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) == nullptr) return std::nullopt;
  return ::timegm(&parts);
}

}  // namespace millrace::os

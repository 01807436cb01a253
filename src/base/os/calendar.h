// Dates of the calendar. Thread-safety: functions without shared state.
#pragma once

#include <ctime>
#include <optional>
#include <string>

namespace millrace::os {

/// As the clock of this machine's time zone shows the time, and as UTC does. None: the system knows no such date.
std::optional<std::tm> local_time(std::time_t time);
std::optional<std::tm> utc_time(std::time_t time);

/// The time of a date in UTC that begins as "2026-11-29T13:45:00"; what follows is passed over. None: it is no date.
std::optional<std::time_t> parse_utc(const std::string& text);

}  // namespace millrace::os

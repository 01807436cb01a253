// Dates of the calendar. Thread-safety: functions without shared state.
#pragma once

#include <ctime>
#include <optional>
#include <string>

namespace millrace::os {

/// The date and time in the local time zone, and in UTC. nullopt: the system cannot represent it.
std::optional<std::tm> local_time(std::time_t time);
std::optional<std::tm> utc_time(std::time_t time);

/// Parses a UTC date that begins like "2026-11-29T13:45:00", and ignores the rest. nullopt: not a date.
std::optional<std::time_t> parse_utc(const std::string& text);

}  // namespace millrace::os

// Byte counts as people write and read them. "6M" is 6,000,000 bytes (GB = 10^9 here), "6MiB" is 6 * 2^20.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

/// Parses "6M", "800MB", "1.5G", "512KiB", "1024"; a bare number is bytes. Errors: invalid_argument.
Expected<std::uint64_t> parse_bytes(std::string_view text);

/// "12.5 MB", "831 B", "2.20 GB": three significant digits, decimal units.
std::string format_bytes(std::uint64_t bytes);

constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t multiple) { return value / multiple * multiple; }

}  // namespace millrace

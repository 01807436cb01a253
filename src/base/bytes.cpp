#include "base/bytes.h"

#include <cctype>
#include <cmath>
#include <cstdlib>

namespace millrace {

Expected<std::uint64_t> parse_bytes(std::string_view text) {
  const std::string owned(text);
  const auto bad = [&] {
    return error(Code::invalid_argument, "'{}' is not a size; write for example 6M, 800MB, 1.5G or 512MiB", owned);
  };
  if (owned.empty() || !(std::isdigit(static_cast<unsigned char>(owned[0])) || owned[0] == '.')) return bad();
  char* end = nullptr;
  const double number = std::strtod(owned.c_str(), &end);
  std::string unit(end);
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  double scale = 0;
  if (unit.empty() || unit == "B")
    scale = 1;
  else if (unit == "K" || unit == "KB")
    scale = 1e3;
  else if (unit == "M" || unit == "MB")
    scale = 1e6;
  else if (unit == "G" || unit == "GB")
    scale = 1e9;
  else if (unit == "T" || unit == "TB")
    scale = 1e12;
  else if (unit == "KI" || unit == "KIB")
    scale = 1024.0;
  else if (unit == "MI" || unit == "MIB")
    scale = 1048576.0;
  else if (unit == "GI" || unit == "GIB")
    scale = 1073741824.0;
  const double bytes = number * scale;
  if (scale == 0 || !std::isfinite(bytes) || bytes < 0 || bytes > 9e18) return bad();
  return static_cast<std::uint64_t>(bytes);
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 999.5 && unit < 6) value /= 1000, ++unit;
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, units[unit]);
}

}  // namespace millrace

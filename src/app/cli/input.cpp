#include "app/cli/input.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/bytes.h"

namespace millrace::cli {
namespace {

constexpr std::uint64_t kMostText = 64'000'000;

Status check_input() {
  if (std::ferror(stdin) == 0) return {};
  return error(Code::io_error, "standard input cannot be read");
}

}  // namespace

std::uint64_t most_text_bytes(std::uint64_t ram_bytes) {
  return ram_bytes == 0 ? kMostText : std::min(kMostText, ram_bytes / 8);
}

Expected<std::string> read_input(std::uint64_t most) {
  std::string text;
  std::array<char, 64 << 10> part;
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), stdin)) {
    if (text.size() + count > most)
      return error(Code::invalid_argument,
                   "standard input has more than {}, the most that one text may have: give less of it",
                   format_bytes(most));
    text.append(part.data(), count);
  }
  MR_RETURN_IF_ERROR(check_input());
  return text;
}

Expected<bool> read_input_line(std::string& line, std::uint64_t most) {
  line.clear();
  int next = 0;
  while ((next = std::getc(stdin)) != EOF && next != '\n') {
    if (line.size() == most)
      return error(Code::invalid_argument,
                   "a line of standard input has more than {}, the most that one text may have: break it",
                   format_bytes(most));
    line += static_cast<char>(next);
  }
  MR_RETURN_IF_ERROR(check_input());
  return next != EOF || !line.empty();
}

}  // namespace millrace::cli

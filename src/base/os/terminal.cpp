#include "base/os/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

namespace millrace::os {
namespace {

int number_of(Stream stream) {
  return stream == Stream::input ? STDIN_FILENO : stream == Stream::output ? STDOUT_FILENO : STDERR_FILENO;
}

}  // namespace

bool is_terminal(Stream stream) { return isatty(number_of(stream)) != 0; }

int terminal_columns(Stream stream) {
  winsize size{};
  constexpr int usual = 80, least = 20;
  if (::ioctl(number_of(stream), TIOCGWINSZ, &size) != 0 || size.ws_col < least) return usual;
  return size.ws_col;
}

}  // namespace millrace::os

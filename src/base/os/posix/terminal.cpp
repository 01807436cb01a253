#include "base/os/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <optional>

#include "base/os/posix/posix.h"

namespace millrace::os {
namespace {

int number_of(Stream stream) {
  return stream == Stream::input ? STDIN_FILENO : stream == Stream::output ? STDOUT_FILENO : STDERR_FILENO;
}

/// The terminal's settings before SingleKeys.
std::optional<termios>& lines_before() {
  static std::optional<termios> before;
  return before;
}

}  // namespace

bool is_terminal(Stream stream) { return isatty(number_of(stream)) != 0; }

int terminal_columns(Stream stream) {
  winsize size{};
  constexpr int usual = 80, least = 20;
  if (::ioctl(number_of(stream), TIOCGWINSZ, &size) != 0 || size.ws_col < least) return usual;
  return size.ws_col;
}

bool input_is_fed() {
  struct stat found {};
  return !is_terminal(Stream::input) && ::fstat(STDIN_FILENO, &found) == 0 &&
         (S_ISFIFO(found.st_mode) || S_ISREG(found.st_mode) || S_ISSOCK(found.st_mode));
}

bool input_is_ready(std::chrono::milliseconds patience) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  const int ready = ::poll(&input, 1, static_cast<int>(patience.count()));
  return ready > 0 || (ready < 0 && errno != EINTR);  // read_input() reports the error
}

Expected<std::size_t> read_input(std::span<char> out) {
  const ssize_t got = ::read(STDIN_FILENO, out.data(), out.size());
  // Ctrl-C discards the terminal's line, so a blocking read would wait: return, and let the caller check its flag.
  if (got < 0 && errno == EINTR) return error(Code::unavailable, "a signal interrupted the read");
  if (got < 0) return last_error();
  return static_cast<std::size_t>(got);
}

SingleKeys::SingleKeys() {
  termios now{};
  if (::tcgetattr(STDIN_FILENO, &now) != 0) return;
  lines_before() = now;
  now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  now.c_iflag &= ~static_cast<tcflag_t>(ICRNL);
  now.c_cc[VMIN] = 1;
  now.c_cc[VTIME] = 0;
  retry([&] { return ::tcsetattr(STDIN_FILENO, TCSADRAIN, &now); });
}

SingleKeys::~SingleKeys() {
  if (lines_before()) retry([&] { return ::tcsetattr(STDIN_FILENO, TCSADRAIN, &*lines_before()); });
  lines_before().reset();
}

bool output_has_no_reader() {
  pollfd output{STDOUT_FILENO, 0, 0};
  return ::poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

}  // namespace millrace::os

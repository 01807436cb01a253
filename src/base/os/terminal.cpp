#include "base/os/terminal.h"

#include <unistd.h>

namespace millrace::os {

bool is_terminal(Stream stream) {
  const int number = stream == Stream::input ? STDIN_FILENO : stream == Stream::output ? STDOUT_FILENO : STDERR_FILENO;
  return isatty(number) != 0;
}

}  // namespace millrace::os

#include "base/open_output.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

namespace millrace {

Expected<int> open_output(const std::string& path, int flags, unsigned mode) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | flags, mode);
  if (fd < 0 && errno == ENXIO)
    return error(Code::io_error, "{}: is a pipe that nobody reads; start its reader first", path);
  if (fd < 0) return error(Code::io_error, "{}: cannot write it: {}; check the path", path, std::strerror(errno));
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL, 0) & ~O_NONBLOCK);  // writing waits for the reader
  return fd;
}

}  // namespace millrace

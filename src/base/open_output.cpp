#include "base/open_output.h"

namespace millrace {

Expected<os::File> open_output(const std::string& path, os::File::Options options) {
  options.access = os::File::Access::write;
  options.wait = false;
  auto file = os::File::open(path, options);
  if (file.ok()) return file;
  if (file.status().code() == Code::unavailable)
    return error(Code::io_error, "{}: is a pipe that nobody reads; start its reader first", path);
  return error(Code::io_error, "{}: cannot write it: {}; check the path", path, file.status().message());
}

}  // namespace millrace

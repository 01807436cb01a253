// Files that people name for output. A named pipe that nobody reads is refused: opening it would wait for ever.
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "base/os/file.h"
#include "base/status.h"

namespace millrace {

/// The file to write to; of the options, access and wait are set here. Errors: io_error, with the path and what to do.
Expected<os::File> open_output(const std::string& path, os::File::Options options);

}  // namespace millrace

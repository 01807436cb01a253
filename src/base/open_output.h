// Opens output files that users name. A named pipe without a reader is refused, because opening it would block for
// ever. Thread-safety: pure functions.
#pragma once

#include <string>

#include "base/os/file.h"
#include "base/status.h"

namespace millrace {

/// Opens the file for writing; sets the options' access and wait itself. Errors: io_error, with the path and what to
/// do.
Expected<os::File> open_output(const std::string& path, os::File::Options options);

}  // namespace millrace

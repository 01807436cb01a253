// Files that people name for output. A named pipe that nobody reads is refused: opening it would wait for ever.
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace {

/// A descriptor to write to, which the caller closes. `flags`: of open(2), beside O_WRONLY and O_CLOEXEC. `mode`: of a
/// new file. Errors: io_error.
Expected<int> open_output(const std::string& path, int flags, unsigned mode = 0666);

}  // namespace millrace

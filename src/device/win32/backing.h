// Memory behind HostBuffers on Windows, for those who hand their addresses to the system: a call of the kernel that
// meets a page without memory fails (ERROR_NOACCESS) where the program's own access is given one.
// Thread-safe.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace millrace::device {

/// Memory stands behind every page of the range from here on, as far as it lies in HostBuffers; other memory is left as
/// it is. Errors: out_of_budget (Windows commits no more).
Status back_memory(const void* begin, std::size_t bytes);

}  // namespace millrace::device

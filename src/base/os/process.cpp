#include "base/os/process.h"

#include <unistd.h>

namespace millrace::os {

std::int64_t process_id() { return getpid(); }

}  // namespace millrace::os

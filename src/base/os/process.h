// This process. Thread-safety: functions without shared state.
#pragma once

#include <cstdint>

namespace millrace::os {

/// The process's number: no other that runs on this machine now has it (in a container: in the container).
std::int64_t process_id();

}  // namespace millrace::os

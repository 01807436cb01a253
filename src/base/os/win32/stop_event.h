// How one process asks another to stop, where the system has no signal for it: an event with the process's number in
// its name.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::os {

inline std::wstring stop_event_name(std::int64_t process) {
  return L"Local\\millrace-stop-" + std::to_wstring(process);
}

}  // namespace millrace::os

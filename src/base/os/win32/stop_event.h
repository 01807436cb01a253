// How one process asks another to stop on a system without signals: an event whose name contains the process id.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::os {

inline std::wstring stop_event_name(std::int64_t process) {
  return L"Local\\millrace-stop-" + std::to_wstring(process);
}

}  // namespace millrace::os

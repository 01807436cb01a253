// The operating system that runs this process. Thread-safe.
#pragma once

#include <string>

namespace millrace::os {

/// Name and version for people: "Linux 6.1.0-18-amd64", "Windows 10.0.19045", "Windows 10.0.18362 (Wine 8.0)".
std::string system_name();

}  // namespace millrace::os

#include "base/os/system_name.h"

#include <sys/utsname.h>

namespace millrace::os {

std::string system_name() {
  utsname names{};
  if (uname(&names) != 0) return "unknown";
  return std::string(names.sysname) + " " + names.release;
}

}  // namespace millrace::os

#include <unistd.h>

#include "base/os/address.h"

namespace millrace::os {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace millrace::os

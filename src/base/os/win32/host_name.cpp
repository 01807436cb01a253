#include "base/os/address.h"
#include "base/os/win32/win32.h"

namespace millrace::os {

std::string host_name() {
  wchar_t name[256] = {};
  DWORD units = 256;
  return GetComputerNameExW(ComputerNameDnsHostname, name, &units) != 0 ? to_utf8({name, units}) : std::string();
}

}  // namespace millrace::os

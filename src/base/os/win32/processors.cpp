#include "base/os/processors.h"

#include <algorithm>

#include "base/os/win32/win32.h"

namespace millrace::os {

// A processor's number is 64 times that of its group (the system's word for up to 64 processors) plus its place there.
std::vector<int> allowed_processors() {
  std::vector<int> allowed;
  USHORT groups[64] = {};
  USHORT count = 64;
  DWORD_PTR mask = 0, every = 0;
  if (GetProcessGroupAffinity(GetCurrentProcess(), &count, groups) == 0) count = 1;  // Wine 8 has groups, but not this
  const bool one = count == 1 && GetProcessAffinityMask(GetCurrentProcess(), &mask, &every) != 0 && mask != 0;
  for (USHORT i = 0; i < count; ++i) {
    const DWORD active = GetActiveProcessorCount(groups[i]);
    for (DWORD place = 0; place < 64; ++place) {
      if (one ? (mask >> place & 1) != 0 : place < active) allowed.push_back(groups[i] * 64 + static_cast<int>(place));
    }
  }
  std::sort(allowed.begin(), allowed.end());
  return allowed.empty() ? std::vector<int>{0} : allowed;
}

int online_processors() { return static_cast<int>(std::max<DWORD>(GetActiveProcessorCount(ALL_PROCESSOR_GROUPS), 1)); }

}  // namespace millrace::os

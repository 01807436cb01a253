#include "base/os/processors.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace millrace::os {

std::vector<int> allowed_processors() {
  for (int capacity = 1024; capacity <= 1 << 17;
       capacity *= 4) {  // the kernel requires a mask with room for every possible CPU
    cpu_set_t* set = CPU_ALLOC(capacity);
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(capacity);
    std::vector<int> allowed;
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (int cpu = 0; cpu < capacity; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, set)) allowed.push_back(cpu);
      }
    }
    CPU_FREE(set);
    if (!allowed.empty()) return allowed;
  }
  return {0};
}

int online_processors() { return static_cast<int>(std::max(::sysconf(_SC_NPROCESSORS_ONLN), 1L)); }

}  // namespace millrace::os

#include "base/os/heap.h"

#include <malloc.h>

namespace millrace::os {

void keep_heap_small() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_TRIM_THRESHOLD, 64 << 10);
  mallopt(M_MMAP_THRESHOLD, 64 << 10);
}

void return_free_memory() { malloc_trim(0); }

}  // namespace millrace::os

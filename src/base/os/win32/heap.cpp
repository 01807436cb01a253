#include "base/os/heap.h"

#include <malloc.h>

#include "base/os/win32/win32.h"

namespace millrace::os {

void keep_heap_small() {}  // Windows has one heap for all threads

void return_free_memory() { (void)_heapmin(); }

}  // namespace millrace::os

// The heap of this process. Thread-safety: keep_heap_small() before any second thread runs; return_free_memory()
// always. Neither fails: on systems without such a setting they do nothing.
#pragma once

namespace millrace::os {

/// Uses one heap for all threads and returns freed memory early: a budget of a few megabytes leaves no room for
/// per-thread heaps or retained memory.
void keep_heap_small();

/// Returns the heap's unused memory to the system.
void return_free_memory();

}  // namespace millrace::os

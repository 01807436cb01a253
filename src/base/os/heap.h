// The heap of this process. Thread-safety: keep_heap_small() before any second thread runs; return_free_memory()
// always. Neither fails: where the system has no such wish they do nothing.
#pragma once

namespace millrace::os {

/// One heap for all threads, which gives freed memory back early: a budget of a few megabytes leaves no room for heaps
/// of each thread or for freed memory that is kept.
void keep_heap_small();

/// Gives the system back what the heap holds and nobody uses.
void return_free_memory();

}  // namespace millrace::os

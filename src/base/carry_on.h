// For the bodies of threads, and for destructors: an exception that leaves one ends the process. Most come of a lack of
// memory, which another request may be about to give back. Thread-safety: pure.
#pragma once

#include <cstdio>
#include <exception>

#include "base/thread_annotations.h"

namespace millrace {

/// Calls `work`, which says which locks it needs, as clang does not look into it from here. An exception is reported on
/// stderr, without taking memory, and goes no further; then false.
template <typename Work>
bool carry_on(const char* what, Work&& work) noexcept MR_NO_THREAD_SAFETY_ANALYSIS {
  try {
    work();
    return true;
  } catch (const std::exception& thrown) {
    std::fprintf(stderr, "error: %s: %s\n", what, thrown.what());
  }
  return false;
}

}  // namespace millrace

// A reserve of memory for destructors. JSON's destructors allocate 16 bytes per value, and the process ends if that
// fails. While an exception unwinds the stack, most likely for lack of memory, they use this reserve. It holds address
// space rather than memory, because nothing is written to it. Thread-safety: any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>

#include "base/os/heap.h"

namespace millrace {

namespace spare_memory {
constexpr std::size_t kSmallPieces = 16, kLargePieces = 8, kSmallBytes = 64 << 10, kLargeBytes = 2 << 20;
inline std::array<std::atomic<void*>, kSmallPieces + kLargePieces> pieces;
}  // namespace spare_memory

/// Refills the reserve. Call it at startup, and after an operation that failed for lack of memory has freed its own.
inline void hold_back_memory() {
  using namespace spare_memory;
  os::return_free_memory();
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i] == nullptr)
      if (void* const bytes = std::malloc(i < kSmallPieces ? kSmallBytes : kLargeBytes); bytes != nullptr)
        std::free(pieces[i].exchange(bytes));
}

/// Releases a piece to malloc, small ones first. False: none is left.
inline bool give_spare_memory() {
  for (std::atomic<void*>& piece : spare_memory::pieces) {
    if (void* const bytes = piece.exchange(nullptr); bytes != nullptr) {
      std::free(bytes);
      return true;
    }
  }
  return false;
}

}  // namespace millrace

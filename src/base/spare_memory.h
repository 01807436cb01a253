// Memory for destructors. Those of JSON take some, 16 bytes for each value inside, and one that gets none ends the
// process. While an exception leaves the stack, most likely for lack of memory, they get what is held back here. It is
// addresses rather than memory, as nothing is written there. Thread-safety: any thread may call.
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

/// Holds back what was given. To be called at the start, and when what failed for lack of memory has let go of its own.
inline void hold_back_memory() {
  using namespace spare_memory;
  os::return_free_memory();
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i] == nullptr)
      if (void* const bytes = std::malloc(i < kSmallPieces ? kSmallBytes : kLargeBytes); bytes != nullptr)
        std::free(pieces[i].exchange(bytes));
}

/// Lets malloc have a piece, small ones first. False: there is none left.
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

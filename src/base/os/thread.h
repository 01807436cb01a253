// A joining thread with a small stack: threads make system calls or run kernels that keep their scratch memory
// elsewhere, and a budget of a few MB has no room for stacks that huge pages would round up to 2 MiB each.
// Thread-safety: an object belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/status.h"

namespace millrace::os {

/// Move-only; the destructor joins, so the thread's function must have been asked to end.
class Thread {
 public:
  static constexpr std::size_t kStackBytes = 256u << 10;

  Thread() = default;
  /// `name`: at most 15 characters, shown by debuggers; empty: none. stack_bytes: at least the system's minimum is
  /// used. Errors: io_error if the thread cannot be created.
  static Expected<Thread> start(const char* name, std::function<void()> body, std::size_t stack_bytes = kStackBytes);
  Thread(Thread&& other) noexcept : handle_(other.handle_), running_(std::exchange(other.running_, false)) {}
  Thread& operator=(Thread&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(running_, other.running_);
    return *this;
  }
  ~Thread();

  /// Pins the thread to that processor. Errors: io_error. REQUIRES: it was started.
  Status bind(int processor) const;

 private:
  std::uintptr_t handle_ = 0;  // the system's handle
  bool running_ = false;
};

/// Lets the calling thread's sleeps end at most so many ns late, where the system lets a thread say so.
void limit_oversleep(std::uint64_t ns);

}  // namespace millrace::os

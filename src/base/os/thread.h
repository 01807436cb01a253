// A joining thread with a small stack: what runs here calls the kernel, or kernels that keep their scratch elsewhere,
// and a budget of a few MB has no room for stacks that huge pages would round up to 2 MiB each. Thread-safety: an
// object belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/status.h"

namespace millrace::os {

/// Move-only; the destructor joins, so what the thread runs must have been told to end.
class Thread {
 public:
  static constexpr std::size_t kStackBytes = 256u << 10;

  Thread() = default;
  /// `name`: at most 15 characters, for people who look at a debugger; empty: none. stack_bytes: or the least that the
  /// system allows. Errors: io_error when the kernel has no thread.
  static Expected<Thread> start(const char* name, std::function<void()> body, std::size_t stack_bytes = kStackBytes);
  Thread(Thread&& other) noexcept : handle_(other.handle_), running_(std::exchange(other.running_, false)) {}
  Thread& operator=(Thread&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(running_, other.running_);
    return *this;
  }
  ~Thread();

  /// From here on it runs on that processor alone. Errors: io_error. REQUIRES: it was started.
  Status bind(int processor) const;

 private:
  std::uintptr_t handle_ = 0;  // what the system calls the thread
  bool running_ = false;
};

}  // namespace millrace::os

// A joining thread with a small stack: readers call the kernel and little else, and a budget of a few MB has no room
// for stacks that huge pages would round up to 2 MiB each.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "base/status.h"

namespace millrace::storage {

/// Move-only; the destructor joins, so what the thread runs must have been told to end.
class SmallThread {
 public:
  SmallThread() = default;
  /// `name`: at most 15 characters, for people who look at a debugger. Errors: io_error when the kernel has no thread.
  static Expected<SmallThread> start(const char* name, std::function<void()> body,
                                     std::size_t stack_bytes = kStackBytes);
  static constexpr std::size_t kStackBytes = 256u << 10;
  SmallThread(SmallThread&& other) noexcept : handle_(other.handle_), running_(std::exchange(other.running_, false)) {}
  SmallThread& operator=(SmallThread&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(running_, other.running_);
    return *this;
  }
  ~SmallThread();

 private:
  pthread_t handle_{};
  bool running_ = false;
};

}  // namespace millrace::storage

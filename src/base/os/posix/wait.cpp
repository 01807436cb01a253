#include "base/os/wait.h"

namespace millrace::os {

void sleep_while_equal(const std::atomic<std::uint32_t>& word, std::uint32_t old) {
  word.wait(old, std::memory_order_acquire);
}

void wake_one(std::atomic<std::uint32_t>& word) { word.notify_one(); }
void wake_all(std::atomic<std::uint32_t>& word) { word.notify_all(); }

}  // namespace millrace::os

#include "base/os/wait.h"

#include "base/os/win32/win32.h"

namespace millrace::os {

void sleep_while_equal(const std::atomic<std::uint32_t>& word, std::uint32_t old) {
  static_assert(sizeof(word) == sizeof(old));
  WaitOnAddress(const_cast<std::atomic<std::uint32_t>*>(&word), &old, sizeof(old), INFINITE);
}

void wake_one(std::atomic<std::uint32_t>& word) { WakeByAddressSingle(&word); }
void wake_all(std::atomic<std::uint32_t>& word) { WakeByAddressAll(&word); }

}  // namespace millrace::os

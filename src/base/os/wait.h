// Sleeping until a word of memory changes, as std::atomic's wait() and notify do it. libstdc++ 12 loses a wake-up now
// and then where the system has no futex: it reads the word, then waits on a condition variable without looking again.
// Thread-safe. A wake-up uses the address alone: whoever was woken may free the word meanwhile.
#pragma once

#include <atomic>
#include <cstdint>

namespace millrace::os {

/// Sleeps until the word is not `old`, or for a shorter while: the caller looks again.
void sleep_while_equal(const std::atomic<std::uint32_t>& word, std::uint32_t old);
/// Wakes who sleeps on the word, after it was changed.
void wake_one(std::atomic<std::uint32_t>& word);
void wake_all(std::atomic<std::uint32_t>& word);

}  // namespace millrace::os

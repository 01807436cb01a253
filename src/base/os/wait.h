// Sleeps until a word of memory changes, like std::atomic's wait() and notify. libstdc++ 12 occasionally loses a
// wake-up on systems without futexes, because it reads the word and then waits on a condition variable without checking
// again. Thread-safe. Waking only uses the address, so a woken thread may already have freed the word.
#pragma once

#include <atomic>
#include <cstdint>

namespace millrace::os {

/// Sleeps until the word differs from `old`; may wake early, so callers check again.
void sleep_while_equal(const std::atomic<std::uint32_t>& word, std::uint32_t old);
/// Wakes threads that sleep on the word. Call after changing it.
void wake_one(std::atomic<std::uint32_t>& word);
void wake_all(std::atomic<std::uint32_t>& word);

}  // namespace millrace::os

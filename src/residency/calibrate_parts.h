// What the parts of calibrate() share: time, numbers, and the disk's part (calibrate_disk.cpp).
// Thread-safety: pure functions but measure_disk(), which is one thread's.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/status.h"
#include "residency/calibrate.h"

namespace millrace::residency {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// xorshift64: bytes that no disk compresses.
inline std::uint64_t next_random(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

/// Bytes per second that the disk of options.path gives: of the file there, or of a scratch file beside it. Errors:
/// not_found, io_error.
Expected<double> measure_disk(const CalibrateOptions& options);

}  // namespace millrace::residency

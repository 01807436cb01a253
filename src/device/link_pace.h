// Paces copies to a GPU like a slower slot, so that a machine with a fast link measures what a PC would reach
// (bench/gaming_pc.py). Calls no driver: the backend reports when a copy begins, and ends it no earlier than crossed()
// allows. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>

#include "base/mutex.h"

namespace millrace::device {

/// A link that carries one copy at a time at a fixed rate.
class LinkPace {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// Copies below this size are not paced: their time is the driver's, not the link's.
  static constexpr std::size_t kLeastBytes = 64 << 10;

  explicit LinkPace(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  /// The earliest end of a copy of `bytes` bytes that begins at `begin`: behind all earlier copies, at the link's rate.
  Time crossed(Time begin, std::size_t bytes);

 private:
  const double bytes_per_second_;
  Mutex mutex_;
  Time free_ MR_GUARDED_BY(mutex_){};  // when the last copy has crossed
};

/// The rate in bytes per second that MILLRACE_LINK_GB_S asks for, given as its text (null: unset); 0 if it is no
/// positive number.
double asked_link_rate(const char* text);
/// The link of this process with that rate; null if MILLRACE_LINK_GB_S is not set. All GPUs share it.
LinkPace* link_pace();

}  // namespace millrace::device

// Refines rates that were measured briefly or not at all, from the measured time of passes. Pure.
#pragma once

#include <cstdint>

#include "residency/plan.h"

namespace millrace::residency {

/// The sum of all passes of one generated row.
struct DecodePasses {
  std::int64_t passes = 0;
  double seconds = 0, wait_seconds = 0;          // of passes; while they waited for weights
  double host_bytes = 0, host_seconds = 0;       // with a GPU: bytes that the CPU's products used, and their time
  double disk_bytes = 0, disk_busy_seconds = 0;  // busy: with a read in flight
};

/// `rates` corrected by these passes of `plan`: the CPU's rates, and the disk's if passes waited for ordered reads. Too
/// few passes, or too short ones, change nothing. Pure.
Rates refined(const Rates& rates, const Plan& plan, const DecodePasses& passes);

}  // namespace millrace::residency

// Rates that were measured briefly, or not at all, made better by what passes of a run took. Pure.
#pragma once

#include <cstdint>

#include "residency/plan.h"

namespace millrace::residency {

/// Passes of one generated row, all together.
struct DecodePasses {
  std::int64_t passes = 0;
  double seconds = 0, wait_seconds = 0;          // of passes; of them waiting for weights
  double host_bytes = 0, host_seconds = 0;       // beside a GPU: what the processor computed with, and how long
  double disk_bytes = 0, disk_busy_seconds = 0;  // busy: with a read in flight
};

/// `rates` as such passes of `plan` found them: the processor's rates, and the disk's where passes waited for what they
/// read in order. Too few passes, or too short ones, change nothing. Pure.
Rates refined(const Rates& rates, const Plan& plan, const DecodePasses& passes);

}  // namespace millrace::residency

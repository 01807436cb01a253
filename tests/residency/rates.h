// Rates of machines that predictions are tested with.
#pragma once

#include "residency/plan.h"

namespace millrace::residency::test {

/// As of a server with an H200.
inline Rates server_rates() {
  return {.disk = 2.2e9,
          .ram = 130e9,
          .cpu_decode = 120e9,
          .host_to_device = 55e9,
          .host_to_device_busy = 44e9,
          .cpu_decode_busy = 90e9,
          .device_memory = 4.2e12,
          .device_prefill_macs = 2.5e14,
          .machine = "a test"};
}

}  // namespace millrace::residency::test

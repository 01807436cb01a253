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

/// As `calibrate` found an H100 of 80 GB and 16 to 32 processors beside it, 2026-11-25.
inline Rates h100_rates() {
  Rates rates = server_rates();
  rates.disk = 3e9;
  rates.ram = 137e9;
  rates.cpu_decode = 132e9;
  rates.host_to_device = 54.7e9;
  rates.host_to_device_busy = 45e9;
  rates.cpu_decode_busy = 95e9;
  rates.device_memory = 2.98e12;
  rates.cpu_prefill_macs = 1e12;
  rates.device_prefill_macs = 251e12;
  rates.cpu_product = 4e-6;
  rates.cpu_few_macs = 500e9;
  return rates;
}

}  // namespace millrace::residency::test

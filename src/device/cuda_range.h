// Addresses of one GPU's memory that are backed on demand, by the driver's virtual memory management: a slot keeps its
// address while its memory comes and goes. Compiled only where there is CUDA; the driver's calls are looked for at run
// time. Thread-safety: as range.h says, but any thread may be the caller.
#pragma once

#include <memory>

#include "device/range.h"

namespace millrace::device {

/// Reserves `bytes` of addresses of the device that is present on the calling thread; no memory is taken. Memory is
/// such that GPUDirect may write to it, where the device can. Errors: unsupported (a driver without these calls, no
/// GPU), out_of_budget (no addresses).
Expected<std::unique_ptr<Range>> reserve_device_range(std::uint64_t bytes);

}  // namespace millrace::device

// A range of addresses that is backed by memory granule by granule, and gives granules back: what host memory does by
// itself, for memory that has to be asked for each time. Thread-safety: one owner, one call at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace millrace::device {

class Range {
 public:
  virtual ~Range() = default;
  virtual std::byte* data() const = 0;
  virtual std::uint64_t bytes() const = 0;  // of addresses: whole granules
  virtual std::uint64_t granule_bytes() const = 0;
  /// Bytes that have memory now.
  virtual std::uint64_t backed_bytes() const = 0;
  /// Memory for all granules that [offset, offset + bytes) touches; those that have some keep what lies there. Errors:
  /// out_of_budget (nothing more is to be had; granules backed on the way stay so), io_error.
  virtual Status back(std::uint64_t offset, std::uint64_t bytes) = 0;
  /// Gives the memory of [offset, offset + bytes) back, of granules that have some. REQUIRES: whole granules, which
  /// nothing reads or writes any more.
  virtual void release(std::uint64_t offset, std::uint64_t bytes) = 0;
};

/// Reserves `bytes` of addresses of the device that is present on the calling thread; no memory is taken. Memory is
/// such that others (GPUDirect) may write to it, where the device can. Compiled only where there is a GPU part. Errors:
/// unsupported (a driver without virtual memory management, no GPU), out_of_budget (no addresses).
Expected<std::unique_ptr<Range>> reserve_device_range(std::uint64_t bytes);

}  // namespace millrace::device

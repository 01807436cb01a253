// Host memory for weights and reads: anonymous pages, huge ones on request, backed on demand.
// Move-only RAII. Page-aligned host memory, page-locked memory and device memory are distinct types, so that a wrong
// pairing does not compile; device/device.h has the latter two.
// Thread-safety: a buffer has one owner; advise calls on disjoint ranges may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace millrace::device {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = 2u << 20;

enum class Pages { normal, huge };  // huge: MADV_HUGEPAGE on a 2 MiB aligned range, where the kernel agrees

/// A range of zeroed anonymous memory. Pages are backed when they are first touched; release() returns pages to the
/// kernel and keeps the addresses.
class HostBuffer {
 public:
  HostBuffer() = default;
  /// Reserves `bytes` (rounded up to pages; base aligned to 2 MiB for Pages::huge). Errors: out_of_budget when the
  /// kernel refuses.
  static Expected<HostBuffer> reserve(std::size_t bytes, Pages pages);
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Pages pages() const { return pages_; }

  /// Returns the whole pages inside [offset, offset + bytes) to the kernel; their contents become zero. Debug builds
  /// poison them first.
  void release(std::size_t offset, std::size_t bytes);

 private:
  /// Whole pages inside the buffer go back to the system.
  void discard(std::size_t offset, std::size_t bytes);

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  Pages pages_ = Pages::normal;
};

}  // namespace millrace::device

#include "device/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace millrace::device {

Expected<HostBuffer> HostBuffer::reserve(std::size_t bytes, Pages pages) {
  HostBuffer buffer;
  buffer.pages_ = pages;
  if (bytes == 0) return buffer;
  const std::size_t slack = pages == Pages::huge ? kHugePageBytes : 0;
  const auto refused = [&](int code) {
    return error(Code::out_of_budget, "cannot reserve {} of memory ({}): lower --ram or raise the memory limit",
                 format_bytes(bytes), std::strerror(code));
  };
  if (bytes > SIZE_MAX - slack - kPageBytes) return refused(ENOMEM);
  const std::size_t rounded = round_up(bytes, kPageBytes);
  void* mapping =
      mmap(nullptr, rounded + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return refused(errno);

  buffer.mapping_ = mapping;
  buffer.mapping_bytes_ = rounded + slack;
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  buffer.data_ = static_cast<std::byte*>(mapping) + (slack == 0 ? 0 : round_up(address, kHugePageBytes) - address);
  buffer.bytes_ = rounded;
  // Only whole huge pages inside the range may be huge, so that a buffer never holds more than bytes(); a normal buffer
  // says no to them, or a small budget would be rounded up to 2 MiB here and there. Both are wishes: a kernel without
  // huge pages refuses, and the memory works all the same.
  const std::size_t huge_bytes = pages == Pages::huge ? round_down(rounded, kHugePageBytes) : 0;
  if (huge_bytes > 0) (void)madvise(buffer.data_, huge_bytes, MADV_HUGEPAGE);
  if (huge_bytes < rounded) (void)madvise(buffer.data_ + huge_bytes, rounded - huge_bytes, MADV_NOHUGEPAGE);
  return buffer;
}

HostBuffer::~HostBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

void HostBuffer::discard(std::size_t offset, std::size_t bytes) { (void)madvise(data_ + offset, bytes, MADV_DONTNEED); }

}  // namespace millrace::device

#include "device/host_memory.h"

#include <cstring>
#include <utility>

#include "base/bytes.h"

namespace millrace::device {

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)),
      pages_(other.pages_) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  HostBuffer taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  std::swap(mapping_, taken.mapping_);
  std::swap(mapping_bytes_, taken.mapping_bytes_);
  std::swap(pages_, taken.pages_);
  return *this;
}

void HostBuffer::release(std::size_t offset, std::size_t bytes) {
  MR_ASSERT(offset <= bytes_ && bytes <= bytes_ - offset);
  const std::size_t begin = round_up(offset, kPageBytes);
  const std::size_t end = round_down(offset + bytes, kPageBytes);
#ifndef NDEBUG
  // Whole pages read as zeros afterwards; the broken pages at the edges stay and are poisoned.
  const std::size_t head_end = begin < offset + bytes ? begin : offset + bytes;
  std::memset(data_ + offset, 0xa5, head_end - offset);
  if (end >= begin) std::memset(data_ + end, 0xa5, offset + bytes - end);
#endif
  if (begin < end) discard(begin, end - begin);
}

}  // namespace millrace::device

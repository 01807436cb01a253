// What of a HostBuffer memory stands behind, as Linux tells it.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "device/cpu.h"
#include "device/host_memory.h"

namespace millrace::device {
namespace {

/// Pages of the buffer that memory stands behind now.
std::size_t backed_pages(const HostBuffer& buffer) {
  std::vector<unsigned char> pages(buffer.bytes() / kPageBytes);
  EXPECT_EQ(mincore(buffer.data(), buffer.bytes(), pages.data()), 0);
  return static_cast<std::size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; }));
}

TEST(HostBuffer, NothingIsBackedUntilTouchedAndReleaseGivesBack) {
  constexpr std::size_t pages = 16384, bytes = pages * kPageBytes;
  auto buffer = HostBuffer::reserve(bytes, Pages::normal);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(backed_pages(*buffer), 0u);
  const std::uint64_t before = resident_bytes();
  std::memset(buffer->data(), 7, bytes);
  EXPECT_EQ(backed_pages(*buffer), pages);
  EXPECT_GT(resident_bytes(), before + bytes * 3 / 4);
  EXPECT_GE(peak_resident_bytes(), before + bytes * 3 / 4);

  buffer->release(100, bytes - 200);  // all but the first and the last page
  EXPECT_EQ(backed_pages(*buffer), 2u);
  EXPECT_EQ(buffer->data()[99], std::byte{7});
  EXPECT_EQ(buffer->data()[kPageBytes], std::byte{0});
  EXPECT_EQ(buffer->data()[bytes - kPageBytes - 1], std::byte{0});
  EXPECT_EQ(buffer->data()[bytes - 100], std::byte{7});
}

TEST(HostBuffer, OneTouchBacksOnePageOfANormalBuffer) {
  auto buffer = HostBuffer::reserve(64u << 20, Pages::normal);
  ASSERT_TRUE(buffer.ok());
  for (std::size_t at = 0; at < buffer->bytes(); at += kHugePageBytes) buffer->data()[at] = std::byte{1};
  EXPECT_EQ(backed_pages(*buffer), 32u);  // not 32 huge pages
}

// The last part of a huge buffer, smaller than a huge page, must not be rounded up beyond bytes().
TEST(HostBuffer, AHugeBufferStaysWithinItsBytes) {
  auto buffer = HostBuffer::reserve(kHugePageBytes * 3 + kPageBytes, Pages::huge);
  ASSERT_TRUE(buffer.ok());
  buffer->data()[kHugePageBytes * 3] = std::byte{1};
  EXPECT_EQ(backed_pages(*buffer), 1u);
}

}  // namespace
}  // namespace millrace::device

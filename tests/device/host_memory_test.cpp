#include "device/host_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "device/cpu.h"

namespace millrace::device {
namespace {

std::uint64_t address(const HostBuffer& buffer) { return reinterpret_cast<std::uintptr_t>(buffer.data()); }

TEST(HostBuffer, IsZeroedRoundedAndAligned) {
  auto normal = HostBuffer::reserve(10000, Pages::normal);
  ASSERT_TRUE(normal.ok());
  EXPECT_EQ(normal->bytes(), 12288u);
  EXPECT_EQ(address(*normal) % kPageBytes, 0u);
  for (std::size_t i = 0; i < normal->bytes(); ++i) ASSERT_EQ(normal->data()[i], std::byte{0});

  auto huge = HostBuffer::reserve(5u << 20, Pages::huge);
  ASSERT_TRUE(huge.ok());
  EXPECT_EQ(huge->bytes(), 5u << 20);
  EXPECT_EQ(address(*huge) % kHugePageBytes, 0u);
  std::memset(huge->data(), 1, huge->bytes());
}

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

TEST(HostBuffer, ReleaseInsideOnePageKeepsTheNeighbours) {
  auto buffer = HostBuffer::reserve(kPageBytes * 2, Pages::normal);
  ASSERT_TRUE(buffer.ok());
  std::memset(buffer->data(), 7, buffer->bytes());
  buffer->release(10, 20);
  EXPECT_EQ(buffer->data()[9], std::byte{7});
  EXPECT_EQ(buffer->data()[30], std::byte{7});
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

TEST(HostBuffer, MovesAndRefuses) {
  auto made = HostBuffer::reserve(kPageBytes, Pages::normal);
  ASSERT_TRUE(made.ok());
  HostBuffer first = std::move(*made);
  std::byte* data = first.data();
  HostBuffer second;
  second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): the moved-from state is what is tested
  EXPECT_EQ(first.bytes(), 0u);      // NOLINT(bugprone-use-after-move)

  auto none = HostBuffer::reserve(0, Pages::huge);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->bytes(), 0u);
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX / 2}) {
    auto absurd = HostBuffer::reserve(bytes, Pages::huge);
    ASSERT_FALSE(absurd.ok());
    EXPECT_EQ(absurd.status().code(), Code::out_of_budget);
  }
}

}  // namespace
}  // namespace millrace::device

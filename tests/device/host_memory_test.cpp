#include "device/host_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>

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

TEST(HostBuffer, ReleaseInsideOnePageKeepsTheNeighbours) {
  auto buffer = HostBuffer::reserve(kPageBytes * 2, Pages::normal);
  ASSERT_TRUE(buffer.ok());
  std::memset(buffer->data(), 7, buffer->bytes());
  buffer->release(10, 20);
  EXPECT_EQ(buffer->data()[9], std::byte{7});
  EXPECT_EQ(buffer->data()[30], std::byte{7});
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

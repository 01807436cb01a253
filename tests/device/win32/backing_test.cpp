// What of a HostBuffer memory stands behind, as Windows counts it: pages that are committed.
#include "device/win32/backing.h"

#include <gtest/gtest.h>
#include <windows.h>

#include <cstdint>
#include <cstring>

#include "device/cpu.h"
#include "device/host_memory.h"

namespace millrace::device {
namespace {

constexpr std::size_t kPieceBytes = 64u << 10;  // as device/win32/host_memory.cpp commits

std::size_t committed_bytes(const HostBuffer& buffer) {
  std::size_t bytes = 0;
  for (std::byte* at = buffer.data(); at < buffer.data() + buffer.bytes();) {
    MEMORY_BASIC_INFORMATION info{};
    if (VirtualQuery(at, &info, sizeof(info)) == 0) break;
    const std::size_t here = static_cast<std::byte*>(info.BaseAddress) + info.RegionSize - at;
    if (info.State == MEM_COMMIT) bytes += std::min<std::size_t>(here, buffer.data() + buffer.bytes() - at);
    at += here;
  }
  return bytes;
}

TEST(HostBuffer, NothingIsBackedUntilTouchedAndReleaseGivesBack) {
  constexpr std::size_t bytes = 64u << 20;
  auto buffer = HostBuffer::reserve(bytes, Pages::normal);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(committed_bytes(*buffer), 0u);
  std::memset(buffer->data(), 7, bytes);
  EXPECT_EQ(committed_bytes(*buffer), bytes);

  buffer->release(100, bytes - 200);  // all but the first and the last page
  EXPECT_EQ(committed_bytes(*buffer), 2 * kPageBytes);
  EXPECT_EQ(buffer->data()[99], std::byte{7});
  EXPECT_EQ(buffer->data()[kPageBytes], std::byte{0});
  EXPECT_EQ(buffer->data()[bytes - kPageBytes - 1], std::byte{0});
  EXPECT_EQ(buffer->data()[bytes - 100], std::byte{7});
}

TEST(HostBuffer, MoreThanTheMachineHasMayBeReserved) {
  auto buffer = HostBuffer::reserve(std::size_t{1} << 40, Pages::huge);
  ASSERT_TRUE(buffer.ok()) << buffer.status().message();
  buffer->data()[std::size_t{1} << 39] = std::byte{1};
  EXPECT_EQ(buffer->data()[(std::size_t{1} << 39) + 1], std::byte{0});
}

TEST(HostBuffer, OneTouchBacksOnePieceOfANormalBuffer) {
  auto buffer = HostBuffer::reserve(64u << 20, Pages::normal);
  ASSERT_TRUE(buffer.ok());
  for (std::size_t at = 0; at < buffer->bytes(); at += kHugePageBytes) buffer->data()[at] = std::byte{1};
  EXPECT_EQ(committed_bytes(*buffer), 32 * kPieceBytes);
}

// The last part of a huge buffer, smaller than a huge page, must not be rounded up beyond bytes().
TEST(HostBuffer, AHugeBufferStaysWithinItsBytes) {
  auto buffer = HostBuffer::reserve(kHugePageBytes * 3 + kPageBytes, Pages::huge);
  ASSERT_TRUE(buffer.ok());
  buffer->data()[kHugePageBytes * 3] = std::byte{1};
  EXPECT_EQ(committed_bytes(*buffer), kPageBytes);
}

TEST(HostBuffer, IsBackedForCallsOfTheSystem) {
  auto buffer = HostBuffer::reserve(8u << 20, Pages::normal);
  ASSERT_TRUE(buffer.ok());
  EXPECT_TRUE(back_memory(buffer->data() + 100, 1u << 20).ok());
  EXPECT_EQ(committed_bytes(*buffer), (1u << 20) + kPieceBytes);
  int elsewhere = 3;
  EXPECT_TRUE(back_memory(&elsewhere, sizeof(elsewhere)).ok());  // is left as it is
  EXPECT_EQ(elsewhere, 3);
}

TEST(HostBuffer, TooMuchAtOnceIsAnErrorInWords) {
  auto buffer = HostBuffer::reserve(std::size_t{1} << 43, Pages::normal);
  if (!buffer.ok()) GTEST_SKIP() << buffer.status().message();
  const Status status = back_memory(buffer->data(), buffer->bytes());
  EXPECT_EQ(status.code(), Code::out_of_budget);
  EXPECT_NE(status.message().find("Windows commits no more memory"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace millrace::device

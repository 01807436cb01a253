#include "residency/row_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace millrace::residency {
namespace {

constexpr std::int64_t kRowBytes = 90;

std::array<std::byte, kRowBytes> row(std::int64_t number) {
  std::array<std::byte, kRowBytes> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(number * 7 + static_cast<std::int64_t>(i));
  return bytes;
}

bool has(RowCache& cache, std::int64_t number) {
  const std::byte* const found = cache.find(number);
  return found != nullptr && std::memcmp(found, row(number).data(), kRowBytes) == 0;
}

TEST(RowCache, KeepsRowsUntilOthersAreUsedMore) {
  alignas(8) std::vector<std::byte> memory(64 << 10);
  RowCache cache(memory, kRowBytes);
  EXPECT_GT(cache.rows(), 500);
  EXPECT_LE(cache.rows() * (kRowBytes + 16), std::ssize(memory));
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(cache.find(i), nullptr);
    cache.put(i, row(i).data());
  }
  for (int use = 0; use < 20; ++use)
    for (std::int64_t i = 0; i < 50; ++i) EXPECT_TRUE(has(cache, i)) << i;
  // As many others as fit once: rows that are used stay.
  for (std::int64_t i = 1000; i < 1000 + cache.rows(); ++i) cache.put(i, row(i).data());
  std::int64_t stayed = 0;
  for (std::int64_t i = 0; i < 50; ++i) stayed += has(cache, i) ? 1 : 0;
  EXPECT_GE(stayed, 45);
  // But not for ever.
  for (std::int64_t i = 10'000; i < 10'000 + 40 * cache.rows(); ++i) cache.put(i, row(i).data());
  for (std::int64_t i = 100; i < 1000; ++i) EXPECT_EQ(cache.find(i), nullptr);
  EXPECT_TRUE(has(cache, 10'000 + 40 * cache.rows() - 1));
}

TEST(RowCache, WithoutMemoryKeepsNothing) {
  RowCache none;
  EXPECT_EQ(none.find(3), nullptr);
  alignas(8) std::vector<std::byte> memory(700);  // less than a set
  RowCache small(memory, kRowBytes);
  small.put(3, row(3).data());
  EXPECT_EQ(small.rows(), 0);
  EXPECT_EQ(small.find(3), nullptr);
}

}  // namespace
}  // namespace millrace::residency

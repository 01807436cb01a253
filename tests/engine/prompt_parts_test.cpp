// How many rows of a prompt are worked at once where layers stream: engine/prompt_parts.h.
#include "engine/prompt_parts.h"

#include <gtest/gtest.h>

namespace millrace::engine {
namespace {

constexpr int kMultiprocessors = 132;
constexpr std::uint64_t kRoom = 1000;

std::int64_t chosen(std::span<const ProductShape> products, std::uint64_t row_bytes = 0) {
  return choose_part(products, kMultiprocessors, kRoom,
                     [=](std::int64_t rows) { return 77 + static_cast<std::uint64_t>(rows) * row_bytes; });
}

// Q K V, output, gate and up, down.
constexpr ProductShape kLlama70b[] = {{10240, 8192}, {8192, 8192}, {57344, 8192}, {8192, 28672}};
constexpr ProductShape kGemma27b[] = {{8192, 5376}, {5376, 4096}, {43008, 5376}, {5376, 21504}};

TEST(PromptParts, AreAsFewRowsAsFillTheDevice) {
  // 64 tiles of rows twice: 128 of 132.
  EXPECT_EQ(chosen(kLlama70b), 512);
  // 42 tiles of rows twice are 84 of 132; three times they are 126.
  EXPECT_GT(part_time(kGemma27b, 512, kMultiprocessors) * 3, part_time(kGemma27b, 768, kMultiprocessors) * 2 * 11 / 10);
  EXPECT_GT(chosen(kGemma27b), 512);
}

TEST(PromptParts, StayWithinTheRoomThatThereIs) {
  EXPECT_EQ(chosen(kGemma27b, kRoom), 512);
  const std::int64_t some = chosen(kGemma27b, kRoom / 256);
  EXPECT_GT(some, 512);
  EXPECT_LE(some, 768);
}

TEST(PromptParts, AreTheSmallestWhereNothingIsKnown) {
  EXPECT_EQ(chosen({}), 512);
  EXPECT_EQ(choose_part(kGemma27b, 0, kRoom, [](std::int64_t) { return std::uint64_t{0}; }), 512);
}

}  // namespace
}  // namespace millrace::engine

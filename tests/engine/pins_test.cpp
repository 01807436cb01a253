#include <gtest/gtest.h>

#include <climits>

#include "engine/engine.h"

namespace millrace::engine {
namespace {

TEST(Pins, NameLayersAndTiers) {
  const auto pins = parse_pins("0-9=vram,10=ram,11-=disk");
  ASSERT_TRUE(pins.ok());
  ASSERT_EQ(pins->size(), 3u);
  EXPECT_EQ((*pins)[0].first_layer, 0);
  EXPECT_EQ((*pins)[0].last_layer, 9);
  EXPECT_EQ((*pins)[0].tier, residency::Tier::vram);
  EXPECT_EQ((*pins)[1].first_layer, 10);
  EXPECT_EQ((*pins)[1].last_layer, 10);
  EXPECT_EQ((*pins)[1].tier, residency::Tier::ram);
  EXPECT_EQ((*pins)[2].first_layer, 11);
  EXPECT_EQ((*pins)[2].last_layer, INT_MAX);
  EXPECT_EQ((*pins)[2].tier, residency::Tier::disk);
}

TEST(Pins, SayWhatIsWrong) {
  for (const char* text :
       {"=ram", "3", "3=", "3=tape", "-3=ram", "9-3=ram", "x=ram", "1-x=ram", "1 =ram", "1=ram,,", "99999999999=ram"}) {
    const auto pins = parse_pins(text);
    ASSERT_FALSE(pins.ok()) << text;
    EXPECT_EQ(pins.status().code(), Code::invalid_argument);
    EXPECT_NE(pins.status().message().find("0-9=vram"), std::string::npos);
  }
}

}  // namespace
}  // namespace millrace::engine

#include "base/os/calendar.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/os/find.h"
#include "base/os/user_folders.h"

namespace millrace::os {
namespace {

TEST(Calendar, ReadsTimesInUtc) {
  EXPECT_EQ(parse_utc("1970-01-01T00:00:00"), 0);
  EXPECT_EQ(parse_utc("2026-11-29T13:45:07Z"), 1'795'959'907);
  EXPECT_EQ(parse_utc("2024-02-29T23:59:59.123+02:00"), 1'709'251'199) << "what follows is passed over";
  for (const char* const text : {"", "today", "2026-11-29", "2026-11-29 13:45:07"})
    EXPECT_FALSE(parse_utc(text)) << text;
}

TEST(Calendar, GivesTheDateOfATime) {
  const auto date = utc_time(1'795'959'907);
  ASSERT_TRUE(date);
  EXPECT_EQ(date->tm_year, 126);
  EXPECT_EQ(date->tm_mon, 10);
  EXPECT_EQ(date->tm_mday, 29);
  EXPECT_EQ(date->tm_hour, 13);
  EXPECT_EQ(date->tm_min, 45);
  EXPECT_EQ(date->tm_sec, 7);
  EXPECT_TRUE(local_time(1'795'959'907));
}

TEST(Find, FindsTheFirstPlace) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text, word;  // of two letters: words that begin again within themselves
    for (unsigned i = random() % 40; i > 0; --i) text += random() % 2 == 0 ? 'a' : 'b';
    for (unsigned i = 1 + random() % 8; i > 0; --i) word += random() % 2 == 0 ? 'a' : 'b';
    EXPECT_EQ(find_word(text, word), text.find(word)) << text << " " << word;
  }
  EXPECT_EQ(find_word("", "a"), std::string_view::npos);
  EXPECT_EQ(find_word(std::string("a\0bcdefg", 8), std::string("\0bcdef", 6)), 1u);
}

TEST(UserFolders, AreThereOrSaidHowToName) {
  for (const UserFolder folder : {UserFolder::cache, UserFolder::state, UserFolder::data, UserFolder::home})
    EXPECT_TRUE(!user_folder(folder).empty() || user_folder_hint(folder).starts_with("set "));
}

}  // namespace
}  // namespace millrace::os

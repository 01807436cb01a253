#include "base/words.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Words, AreTrimmedAtBothEnds) {
  EXPECT_EQ(trim(" \t\r\n a b \n"), "a b");
  EXPECT_EQ(trim("a"), "a");
  EXPECT_EQ(trim(" \n "), "");
  EXPECT_EQ(trim(""), "");
  EXPECT_EQ(trim("\xc2\xa0 a"), "\xc2\xa0 a");  // no-break spaces are text
  EXPECT_EQ(spaces("  a "), 2u);
  EXPECT_EQ(spaces("   "), 3u);
  EXPECT_EQ(spaces(""), 0u);
}

TEST(Words, AreTheSameInEitherCase) {
  EXPECT_EQ(lower("Q4_K_M\xc3\x84"), "q4_k_m\xc3\x84");  // of ASCII letters alone
  EXPECT_TRUE(same_word("Content-Length", "content-length"));
  EXPECT_TRUE(same_word("", ""));
  EXPECT_FALSE(same_word("a", "ab"));
  EXPECT_FALSE(same_word("@", "`"));  // 32 apart as letters are
}

}  // namespace
}  // namespace millrace

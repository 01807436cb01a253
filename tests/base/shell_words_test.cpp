#include "base/shell_words.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

std::vector<std::string> texts(std::string_view text) {
  std::vector<std::string> all;
  for (const ShellWord& word : shell_words(text)) all.push_back(word.text);
  return all;
}

TEST(ShellWords, AreQuotedAndEscapedAsAShellHasThem) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(texts(""), Words{});
  EXPECT_EQ(texts(" a\tb \n"), (Words{"a", "b"}));
  EXPECT_EQ(texts(R"(/a/My\ cat\(1\).png what?)"), (Words{"/a/My cat(1).png", "what?"}));
  EXPECT_EQ(texts(R"('/a/My cat.png' x)"), (Words{"/a/My cat.png", "x"}));
  EXPECT_EQ(texts(R"("/a/My \"cat\" \n.png")"), (Words{R"(/a/My "cat" \n.png)"}));
  EXPECT_EQ(texts(R"('/a/it'\''s.png')"), (Words{"/a/it's.png"}));
  EXPECT_EQ(texts(R"('/a b'.)"), (Words{"/a b."}));
}

TEST(ShellWords, TakeWhatPeopleWriteAsLetters) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(texts("don't say it's"), (Words{"don't", "say", "it's"}));
  EXPECT_EQ(texts("'tis open \" too"), (Words{"'tis", "open", "\"", "too"}));
  EXPECT_EQ(texts("ends\\"), (Words{"ends\\"}));
}

TEST(ShellWords, HaveTheirPlaces) {
  const std::string text = "see 'a b' now";
  const auto words = shell_words(text);
  ASSERT_EQ(words.size(), 3u);
  EXPECT_EQ(text.substr(words[1].begin, words[1].end - words[1].begin), "'a b'");
  EXPECT_TRUE(words[1].quoted);
  EXPECT_FALSE(words[2].quoted);
}

}  // namespace
}  // namespace millrace

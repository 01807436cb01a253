#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "text/fixtures.h"

namespace millrace::text {
namespace {

PreTokenizer make(std::string_view name) {
  const PreTokenizerFamily* family = find_pretokenizer(name);
  EXPECT_NE(family, nullptr) << name;
  auto made = PreTokenizer::make(*family);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(*made);
}

std::vector<std::uint32_t> lengths(const PreTokenizer& pretokenizer, std::string_view text) {
  std::vector<std::uint32_t> ends;
  pretokenizer.split(text, ends);
  for (std::size_t i = ends.size(); i-- > 1;) ends[i] -= ends[i - 1];
  return ends;
}

/// A name of each family.
std::vector<std::string> families() {
  std::map<const PreTokenizerFamily*, std::string> names;
  std::istringstream all(known_pretokenizers());
  for (std::string name; std::getline(all >> std::ws, name, ',');) names.emplace(find_pretokenizer(name), name);
  std::vector<std::string> one_each;
  for (const auto& [family, name] : names) one_each.push_back(name);
  return one_each;
}

TEST(PreTokenizer, CutsAsAnIndependentRegexEngineDoes) {
  std::vector<std::string> texts = test::read_texts("texts.inp");
  const std::vector<std::string> more = test::read_texts("pieces.inp");
  texts.insert(texts.end(), more.begin(), more.end());
  std::map<std::string, std::size_t> seen;
  std::istringstream lines(test::read_file(test::kData + "pieces.out"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<std::uint32_t> expected;
    for (std::uint32_t length; words >> length;) expected.push_back(length);
    const std::string& text = texts.at(seen[name]++);
    EXPECT_EQ(lengths(make(name), text), expected) << name << ": " << text;
  }
  EXPECT_EQ(seen.size(), 21u);
  for (const auto& [name, count] : seen) EXPECT_EQ(count, texts.size()) << name;
}

TEST(PreTokenizer, LongTextsAreCutAsShortOnes) {  // the JIT's matches are the interpreter's
  const std::vector<std::string> texts = test::read_texts("texts.inp");
  for (const char* name : {"gpt-2", "llama-bpe", "qwen2", "qwen35", "deepseek-llm", "falcon", "deepseek-v3", "gpt-4o",
                           "tekken", "kimi-k2", "afmoe", "youtu"}) {
    const PreTokenizer pretokenizer = make(name);
    std::string all;
    std::vector<std::uint32_t> expected;
    while (all.size() < 100000) {
      for (const std::string& text : texts) {
        // Every family begins a piece at a letter after a line end; that letter ends the part, and begins the next.
        const auto pieces = lengths(pretokenizer, "z" + text + "\nz");
        ASSERT_EQ(pieces.back(), 1u);
        expected.insert(expected.end(), pieces.begin(), pieces.end() - 1);
        all += "z" + text + "\n";
      }
    }
    all += "z";
    expected.push_back(1);
    EXPECT_EQ(lengths(pretokenizer, all), expected) << name;
  }
}

TEST(PreTokenizer, KnowsTheFamiliesItMust) {
  for (const char* name :
       {"gpt-2",      "llama-bpe",   "qwen2",     "qwen35",         "deepseek-llm",     "deepseek-coder", "starcoder",
        "refact",     "falcon",      "mpt",       "command-r",      "default",          "gpt-4o",         "llama4",
        "tekken",     "deepseek-v3", "joyai-llm", "glm4",           "chatglm-bpe",      "kimi-k2",        "minimax-m2",
        "seed-coder", "exaone",      "exaone4",   "exaone-moe",     "deepseek-r1-qwen", "lfm2",           "pixtral",
        "solar-open", "bailingmoe2", "afmoe",     "granite-docling"}) {
    EXPECT_NE(find_pretokenizer(name), nullptr) << name;
    EXPECT_NE(known_pretokenizers().find(name), std::string::npos) << name;
  }
  EXPECT_EQ(find_pretokenizer("nonesuch"), nullptr);
}

TEST(PreTokenizer, MongolianVowelSeparatorIsNoSpace) {  // for PCRE2's own \s it is
  EXPECT_EQ(lengths(make("gpt-2"), "a\xE1\xA0\x8E\xE1\xA0\x8E"), (std::vector<std::uint32_t>{1, 6}));
}

TEST(PreTokenizer, BrokenBytesAreSymbolsAndKeepTheirPlace) {
  const PreTokenizer pretokenizer = make("gpt-2");
  EXPECT_EQ(lengths(pretokenizer, "ab\xFF\xFE cd"), (std::vector<std::uint32_t>{2, 2, 3}));
  EXPECT_EQ(lengths(pretokenizer, "\xE2\x82"), (std::vector<std::uint32_t>{2}));
  EXPECT_TRUE(lengths(pretokenizer, "").empty());
}

TEST(PreTokenizer, LongRunsTakeLinearTime) {  // a plain \s+$ would try every suffix of every run
  for (const std::string& name : families()) {
    const PreTokenizer pretokenizer = make(name);
    for (const char* unit : {" ", "\n", "1", "A", "a", "a ", "'", "\xCC\x81", "\xE6\x88\x91", "\xE3\x80\x85"}) {
      std::string text;
      while (text.size() < 200000) text += unit;
      text += "x";
      std::vector<std::uint32_t> ends;
      const auto begin = std::chrono::steady_clock::now();
      pretokenizer.split(text, ends);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      EXPECT_EQ(ends.back(), text.size()) << name;
      EXPECT_LT(took.count(), 5.0) << name << " '" << unit << "'";
    }
  }
}

}  // namespace
}  // namespace millrace::text

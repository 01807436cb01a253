#include "text/normal_form.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>
#include <string>

#include "text/fixtures.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace millrace::text {
namespace {

TEST(NormalForm, LettersAndMarksBecomeOneCharacter) {
  EXPECT_EQ(compose("Cafe\xCC\x81s"), "Caf\xC3\xA9s");
  EXPECT_EQ(compose("a\xCC\xA3\xCC\x87"), "\xE1\xBA\xA1\xCC\x87");             // marks in their order
  EXPECT_EQ(compose("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"), "\xED\x95\x9C");  // Hangul
  EXPECT_EQ(compose("\xE2\x84\xAB"), "\xC3\x85");                              // the unit is the letter
  EXPECT_EQ(compose("\xE0\xA5\x98"), "\xE0\xA4\x95\xE0\xA4\xBC");              // one that never composes
  EXPECT_EQ(compose("\xCC\x81x"), "\xCC\x81x");
  EXPECT_EQ(compose("\xFF\x65\xCC\x81\xCC"), "\xFF\xC3\xA9\xCC");  // broken bytes stay
  EXPECT_EQ(compose(std::string("\0e\xCC\x81\0", 5)), std::string("\0\xC3\xA9\0", 4));
  EXPECT_EQ(compose(""), "");
  EXPECT_FALSE(
      may_be_decomposed("Stra\xC3\x9F"
                        "e \xCA\xB0"));
  EXPECT_TRUE(may_be_decomposed("e\xCC\x81"));
}

TEST(NormalForm, RunsGiveWhatTheWholeTextGives) {
  std::mt19937 random(3);
  // Characters from every block that composes, and some that do not.
  constexpr char32_t kBlocks[][2] = {{0x20, 0x17F},    {0x300, 0x36F},   {0x370, 0x3FF},     {0x900, 0xDFF},
                                     {0xF40, 0xFBC},   {0x1000, 0x109F}, {0x1100, 0x11FF},   {0x1B00, 0x1B44},
                                     {0x1E00, 0x1FFF}, {0x2000, 0x212B}, {0x3040, 0x30FF},   {0xAC00, 0xAC40},
                                     {0xF900, 0xFA6D}, {0xFB1D, 0xFB4E}, {0x110A0, 0x110BA}, {0x1D15E, 0x1D1C0}};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      const auto& block = kBlocks[random() % std::size(kBlocks)];
      append_utf8(block[0] + random() % (block[1] - block[0] + 1), text);
    }
    utf8proc_uint8_t* whole = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
    ASSERT_NE(whole, nullptr);
    EXPECT_EQ(compose(text), reinterpret_cast<const char*>(whole)) << text;
    std::free(whole);
  }
}

TEST(NormalForm, FamiliesWithoutItKeepTextAsItIs) {
  const std::vector<std::string> tokens = {"\xC3\x83\xC2\xA9"};  // the letter, in the byte alphabet
  const std::vector<std::string> merges = {"\xC3\x83 \xC2\xA9"};
  const auto qwen = test::make_tokenizer(test::bpe_image("qwen2", tokens, {1}, merges));
  const auto llama = test::make_tokenizer(test::bpe_image("llama-bpe", tokens, {1}, merges));
  ASSERT_TRUE(qwen != nullptr && llama != nullptr);
  EXPECT_EQ(qwen->encode("e\xCC\x81", Specials::as_text), (std::vector<TokenId>{256}));
  EXPECT_EQ(llama->encode("e\xCC\x81", Specials::as_text), (std::vector<TokenId>{'e', 0xCC, 0x81}));
}

}  // namespace
}  // namespace millrace::text

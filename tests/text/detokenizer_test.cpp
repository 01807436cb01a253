#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/answer_format.h"
#include "text/fixtures.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace millrace::text {
namespace {

// Ids 0 to 255 are the bytes, 256 is a control token.
std::shared_ptr<const Tokenizer> bytes_only() {
  static const auto tokenizer = test::make_tokenizer(test::bpe_image("gpt-2", {"<|end|>"}, {3}, {}));
  return tokenizer;
}

std::string stream(const std::vector<TokenId>& ids, std::vector<std::string>* pieces = nullptr) {
  Detokenizer detokenizer(bytes_only());
  std::string all;
  for (const TokenId id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(piece));
    if (pieces != nullptr) pieces->push_back(piece);
    all += piece;
  }
  return all + detokenizer.flush();
}

std::vector<TokenId> as_ids(const std::string& bytes) {
  std::vector<TokenId> ids;
  for (const char byte : bytes) ids.push_back(bytes_only()->encode(std::string(1, byte), Specials::as_text).at(0));
  return ids;
}

TEST(Detokenizer, ShowsTheControlTokensItIsToldTo) {
  AnswerFormat format;
  CallFormat calls;
  calls.call = "<|end|>";
  calls.call_end = "x";
  format.calls = &calls;
  EXPECT_EQ(mark_tokens(*bytes_only(), {}), std::vector<TokenId>{});
  EXPECT_EQ(mark_tokens(*bytes_only(), format), std::vector<TokenId>{256});
  Detokenizer hidden(bytes_only()), shown(bytes_only(), false, {256});
  EXPECT_EQ(hidden.push(256), "");
  EXPECT_EQ(shown.push(256), "<|end|>");
}

TEST(Detokenizer, HoldsBytesBackUntilTheirCharacterIsWhole) {
  std::vector<std::string> pieces;
  stream(as_ids("a\xC3\xA9\xF0\x9F\xA6\x99z"), &pieces);
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "", "\xC3\xA9", "", "", "", "\xF0\x9F\xA6\x99", "z"}));
}

TEST(Detokenizer, BrokenBytesBecomeOneReplacementEachSubpart) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(stream(as_ids("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64")),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(stream(as_ids("ab\xE2\x82")), "ab" + r);     // the end cuts a character
  EXPECT_EQ(stream(as_ids("\xC0\xAF")), r + r);          // an overlong form
  EXPECT_EQ(stream(as_ids("\xED\xA0\x80")), r + r + r);  // a surrogate
  EXPECT_EQ(stream(as_ids("\xE2\x28\xA1")), r + "(" + r);
}

TEST(Detokenizer, ControlTokensAndStrangersSayNothing) {
  std::vector<TokenId> ids = as_ids("hi");
  ids.insert(ids.begin() + 1, {256, -1, 257, 1 << 30});
  EXPECT_EQ(stream(ids), "hi");
  EXPECT_EQ(bytes_only()->decode({256}, true), "<|end|>");
  EXPECT_TRUE(bytes_only()->ends_generation(256));
}

TEST(Detokenizer, TokenByTokenIsTheWholeText) {
  const auto demo = test::demo_tokenizer();
  ASSERT_NE(demo, nullptr);
  for (const std::string& text : test::read_texts("texts.inp")) {
    Detokenizer detokenizer(demo);
    std::string all;
    for (const TokenId id : demo->encode(text, Specials::as_text)) {
      all += detokenizer.push(id);
      ASSERT_TRUE(is_valid_utf8(all));
      ASSERT_EQ(text.compare(0, all.size(), all), 0);  // what is out is never taken back
    }
    EXPECT_EQ(all + detokenizer.flush(), text);
  }
}

TEST(Detokenizer, SentencePieceLosesItsFirstSpaceOnlyAtABeginning) {
  const auto spm = test::open_tokenizer(test::kData + "llama-spm.gguf");
  ASSERT_NE(spm, nullptr);
  const std::vector<TokenId> ids = spm->encode("Hello world", Specials::as_text);
  ASSERT_EQ(ids.size(), 2u);
  Detokenizer answer(spm);
  EXPECT_EQ(answer.push(*spm->bos()), "");  // hidden: the text has not begun
  EXPECT_EQ(answer.push(ids[0]), "Hello");
  EXPECT_EQ(answer.push(ids[1]), " world");
  Detokenizer completion(spm, /*continues_text=*/true);
  EXPECT_EQ(completion.push(ids[1]), " world");
}

}  // namespace
}  // namespace millrace::text

#include "text/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace millrace::text {
namespace {

/// Well-formedness by arithmetic on the code point, as another way to say what table 3-7 says.
bool well_formed(const std::string& bytes) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])); };
  const std::size_t size = bytes.size();
  std::uint32_t code = 0;
  if (size == 1) return at(0) < 0x80;
  if (size == 2 && at(0) >> 5 == 6)
    code = at(0) & 0x1F;
  else if (size == 3 && at(0) >> 4 == 14)
    code = at(0) & 0x0F;
  else if (size == 4 && at(0) >> 3 == 30)
    code = at(0) & 0x07;
  else
    return false;
  for (std::size_t i = 1; i < size; ++i) {
    if (at(i) >> 6 != 2) return false;
    code = code << 6 | (at(i) & 0x3F);
  }
  const std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  return code >= least[size] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

TEST(Utf8, EveryCodePointSurvives) {
  for (std::uint32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string bytes;
    append_utf8(static_cast<char32_t>(code), bytes);
    const Utf8Step step = next_utf8(bytes);
    ASSERT_EQ(step.kind, Utf8Kind::character) << code;
    ASSERT_EQ(step.bytes, bytes.size()) << code;
    ASSERT_EQ(static_cast<std::uint32_t>(decode_utf8(bytes)), code);
    ASSERT_TRUE(well_formed(bytes)) << code;
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      ASSERT_EQ(next_utf8(bytes.substr(0, cut)).kind, Utf8Kind::incomplete) << code;
      ASSERT_EQ(next_utf8(bytes.substr(0, cut)).bytes, cut) << code;
    }
  }
}

TEST(Utf8, EveryPairAndTripleOfBytesIsJudgedRightly) {
  for (std::uint32_t pair = 0; pair < 65536; ++pair) {
    const std::string two = {static_cast<char>(pair >> 8), static_cast<char>(pair & 0xFF)};
    const Utf8Step step = next_utf8(two);
    ASSERT_EQ(step.kind == Utf8Kind::character && step.bytes == 2, well_formed(two)) << pair;
    for (const char third : {'\x00', '\x7F', '\x80', '\xBF', '\xC0', '\xFF'}) {
      const std::string three = two + third;
      const Utf8Step longer = next_utf8(three);
      ASSERT_EQ(longer.kind == Utf8Kind::character && longer.bytes == 3, well_formed(three)) << pair;
      if (step.kind == Utf8Kind::invalid) {
        ASSERT_EQ(longer.kind, Utf8Kind::invalid);
        ASSERT_EQ(longer.bytes, step.bytes);
      }
    }
  }
}

TEST(Utf8, MaximalSubpartsAreThoseOfTheStandard) {  // the example of section 3.9, table 3-8
  const std::string text = "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64";
  const std::size_t lengths[] = {1, 3, 2, 1, 1, 1, 1, 1, 1, 1};
  std::size_t at = 0;
  for (const std::size_t length : lengths) {
    ASSERT_LT(at, text.size());
    EXPECT_EQ(next_utf8(std::string_view(text).substr(at)).bytes, length) << at;
    at += length;
  }
  EXPECT_EQ(at, text.size());
  EXPECT_FALSE(is_valid_utf8(text));
  EXPECT_TRUE(is_valid_utf8("gr\xC3\xBC\xC3\x9F \xF0\x9F\xA6\x99"));
}

}  // namespace
}  // namespace millrace::text

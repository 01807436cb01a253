// Published vocabularies, encoded by this engine and by another (tools/oracles/tokenizers.mjs).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/fixtures.h"

namespace millrace::text {
namespace {

/// Where the lists part, for a message that can be read.
std::string first_difference(const std::vector<TokenId>& ids, const std::vector<TokenId>& expected,
                             const Tokenizer& tokenizer) {
  const auto [at, wanted] = std::mismatch(ids.begin(), ids.end(), expected.begin(), expected.end());
  const auto show = [&](auto from, auto to) {
    std::string text;
    for (int i = 0; i < 8 && from != to; ++i, ++from) {
      text += std::to_string(*from) + "'" + tokenizer.token_bytes(*from, true) + "' ";
    }
    return text;
  };
  return "after " + std::to_string(at - ids.begin()) + " tokens: " + show(at, ids.end()) +
         "\n but expected: " + show(wanted, expected.end());
}

TEST(PublishedTokenizers, GiveTheIdsThatTheyGiveElsewhere) {
  const char* folder = std::getenv("MILLRACE_TOKENIZER_ORACLE");
  if (folder == nullptr)
    GTEST_SKIP() << "skipped: MILLRACE_TOKENIZER_ORACLE names no output of tools/oracles/tokenizers.mjs";
  const auto cases = nlohmann::json::parse(test::read_file(std::string(folder) + "/cases.json"), nullptr, false);
  ASSERT_TRUE(cases.is_object()) << folder;
  const auto texts = cases["texts"].get<std::vector<std::string>>();
  ASSERT_GT(texts.size(), 100u);
  ASSERT_GT(cases["tokenizers"].size(), 0u);
  for (const auto& one : cases["tokenizers"]) {
    const auto name = one["name"].get<std::string>();
    const auto tokenizer = test::open_tokenizer(one["gguf"].get<std::string>());
    if (tokenizer == nullptr) continue;  // has failed already
    for (const auto& [key, specials] :
         {std::pair("parsed", Specials::parse), std::pair("as_text", Specials::as_text)}) {
      const auto expected = one[key].get<std::vector<std::vector<TokenId>>>();
      ASSERT_EQ(expected.size(), texts.size()) << name;
      int different = 0;
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const std::vector<TokenId> ids = tokenizer->encode(texts[i], specials);
        if (ids == expected[i]) continue;
        if (++different <= 5) {
          ADD_FAILURE() << name << ", " << key << ", text " << i << ", "
                        << first_difference(ids, expected[i], *tokenizer);
        }
      }
      EXPECT_EQ(different, 0) << name << ", " << key << ": texts that differ";
    }
  }
}

}  // namespace
}  // namespace millrace::text

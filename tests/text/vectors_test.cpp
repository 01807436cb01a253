// The token ids that llama.cpp's tokenizer vectors and @huggingface/tokenizers give, with vocabularies reduced to what
// the texts touch (tools/tokenizer-fixtures), and with the whole ones where MILLRACE_TOKENIZER_FIXTURES names a folder
// of them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "modelfile/gguf.h"
#include "text/fixtures.h"
#include "text/tokenizer.h"

namespace millrace::text {
namespace {

using test::kData;
using test::read_file;

std::vector<std::vector<TokenId>> read_ids(const std::string& name) {
  std::istringstream lines(read_file(kData + name + ".out"));
  std::vector<std::vector<TokenId>> all;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream numbers(line);
    all.emplace_back(std::istream_iterator<TokenId>(numbers), std::istream_iterator<TokenId>());
  }
  return all;
}

class Vectors : public testing::TestWithParam<const char*> {};

/// Compares every text of the vectors; ids go through `original` where the vocabulary is a reduced one.
void check(const std::string& path, const std::string& name) {
  const auto model = modelfile::Model::open(path);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::shared_ptr<const Tokenizer> tokenizer = test::open_tokenizer(path);
  ASSERT_NE(tokenizer, nullptr);
  std::vector<std::int64_t> original;
  if (model->has("millrace.test.original_ids")) {
    const auto ids = model->get_ints("millrace.test.original_ids");
    ASSERT_TRUE(ids.ok());
    original = *ids;
  }
  const std::vector<std::string> texts = test::read_texts("texts.inp");
  const std::vector<std::vector<TokenId>> expected = read_ids(name);
  ASSERT_EQ(texts.size(), 46u);
  ASSERT_EQ(expected.size(), texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::vector<TokenId> ids = tokenizer->encode(texts[i], Specials::as_text);
    std::vector<TokenId> mapped = ids;
    for (TokenId& id : mapped) {
      if (!original.empty()) id = static_cast<TokenId>(original[static_cast<std::size_t>(id)]);
    }
    EXPECT_EQ(mapped, expected[i]) << name << ", text " << i << ": " << texts[i];
    EXPECT_EQ(tokenizer->decode(ids), texts[i]) << name << ", text " << i;
  }
}

TEST_P(Vectors, GiveThePublishedIds) { check(kData + GetParam() + ".gguf", GetParam()); }

TEST_P(Vectors, GiveThePublishedIdsWithTheWholeVocabulary) {
  const char* folder = std::getenv("MILLRACE_TOKENIZER_FIXTURES");
  if (folder == nullptr) {
    GTEST_SKIP() << "set MILLRACE_TOKENIZER_FIXTURES to the folder that tools/tokenizer-fixtures/make.sh fills";
  }
  check(std::string(folder) + "/" + GetParam() + ".gguf", GetParam());
}

INSTANTIATE_TEST_SUITE_P(Text, Vectors,
                         testing::Values("gpt-2", "deepseek-coder", "llama-spm", "llama-bpe", "qwen2", "deepseek-v3",
                                         "gpt-4o", "tekken", "gemma3", "gemma4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace millrace::text

// What the tests of this room share: the fixtures' folder, a reader, a small tokenizer of each kind.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "modelfile/gguf.h"
#include "text/byte_alphabet.h"
#include "text/gguf_image.h"
#include "text/tokenizer.h"

namespace millrace::text::test {

inline const std::string kData = std::string(MILLRACE_TEST_DATA) + "/tokenizers/";

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Texts parted by a line; the newline before it is part of the separator.
inline std::vector<std::string> read_texts(const std::string& name) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  const std::string all = read_file(kData + name);
  std::vector<std::string> texts;
  std::size_t begin = 0;
  for (auto at = all.find(separator); at != std::string::npos; at = all.find(separator, begin)) {
    texts.push_back(all.substr(begin, at - begin));
    begin = at + separator.size();
  }
  return texts;
}

inline std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& path) {
  const auto model = modelfile::Model::open(path);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return nullptr;
  auto tokenizer = Tokenizer::from_model(*model);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

inline std::shared_ptr<const Tokenizer> demo_tokenizer() {
  static const auto tokenizer = open_tokenizer(std::string(MILLRACE_SOURCE_DIR) + "/models/demo-moe-q4_k_m.gguf");
  return tokenizer;
}

/// Byte-level BPE over all 256 bytes (ids 0 to 255), then the given tokens with their types, then `merges`.
inline millrace::test::GgufImage bpe_image(const std::string& pre, const std::vector<std::string>& more,
                                           const std::vector<std::int32_t>& more_types,
                                           const std::vector<std::string>& merges,
                                           const std::string& architecture = "llama") {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types(256, 1);
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(alphabet_character(static_cast<unsigned char>(byte)));
  tokens.insert(tokens.end(), more.begin(), more.end());
  types.insert(types.end(), more_types.begin(), more_types.end());
  millrace::test::GgufImage image;
  image.text("general.architecture", architecture).text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre);
  image.texts("tokenizer.ggml.tokens", tokens).integers("tokenizer.ggml.token_type", types);
  image.texts("tokenizer.ggml.merges", merges);
  return image;
}

inline std::shared_ptr<const Tokenizer> make_tokenizer(const millrace::test::GgufImage& image) {
  const auto model = image.model();
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return nullptr;
  auto tokenizer = Tokenizer::from_model(*model);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

}  // namespace millrace::text::test

// Logits against an independent implementation (PyTorch, float32): tests/data/reference/README.md has the format.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/support.h"

namespace millrace::engine::test {

struct Reference {
  std::string text;  // empty: the tokens have none
  std::vector<TokenId> tokens;
  std::vector<float> logits;  // [tokens, vocab]
  std::size_t vocab = 0;
};

inline std::vector<Reference> read_references(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char magic[8] = {};
  std::uint32_t version = 0, prompts = 0;
  const auto number = [&](std::uint32_t& value) { file.read(reinterpret_cast<char*>(&value), 4); };
  file.read(magic, 8);
  number(version);
  number(prompts);
  EXPECT_EQ(std::string(magic, 8), "MRLOGITS") << path;
  EXPECT_EQ(version, 1u);
  std::vector<Reference> references(file.good() ? prompts : 0);
  for (Reference& reference : references) {
    std::uint32_t bytes = 0, tokens = 0, vocab = 0;
    number(bytes), number(tokens), number(vocab);
    reference.text.resize((bytes + 3) / 4 * 4);
    file.read(reference.text.data(), static_cast<std::streamsize>(reference.text.size()));
    reference.text.resize(bytes);
    reference.tokens.resize(tokens);
    file.read(reinterpret_cast<char*>(reference.tokens.data()), tokens * std::streamsize{4});
    reference.vocab = vocab;
    reference.logits.resize(std::size_t{tokens} * vocab);
    file.read(reinterpret_cast<char*>(reference.logits.data()),
              static_cast<std::streamsize>(reference.logits.size() * 4));
  }
  EXPECT_TRUE(file.good()) << path;
  return references;
}

struct Agreement {
  double relative_l2 = 0;  // over all logits
  double same_argmax = 0;  // share of rows
};

inline Agreement agreement(const EngineOptions& options, const std::string& reference_path) {
  const auto engine = make(options);
  double difference = 0, norm = 0;
  std::size_t rows = 0, same = 0;
  for (const Reference& reference : read_references(reference_path)) {
    if (!reference.text.empty()) {
      EXPECT_EQ(engine->tokenizer().encode(reference.text, text::Specials::parse), reference.tokens);
    }
    std::vector<float> logits;
    Request request = greedy(reference.tokens, 1);
    keep_logits(request, logits);
    EXPECT_NE(engine->run(std::move(request)).finish, Finish::error);
    EXPECT_EQ(logits.size(), reference.logits.size());
    if (logits.size() != reference.logits.size()) return {1, 0};
    for (std::size_t i = 0; i < logits.size(); ++i) {
      difference += std::pow(double{logits[i]} - double{reference.logits[i]}, 2);
      norm += std::pow(double{reference.logits[i]}, 2);
    }
    for (std::size_t row = 0; row < reference.tokens.size(); ++row, ++rows) {
      const auto argmax = [&](const std::vector<float>& all) {
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(row * reference.vocab);
        return std::max_element(first, first + static_cast<std::ptrdiff_t>(reference.vocab)) - first;
      };
      same += argmax(logits) == argmax(reference.logits) ? 1 : 0;
    }
  }
  EXPECT_GT(rows, 30u);
  const Agreement found{std::sqrt(difference / norm), static_cast<double>(same) / static_cast<double>(rows)};
  std::printf("relative L2 %.2e, same argmax in %zu of %zu rows\n", found.relative_l2, same, rows);
  return found;
}

}  // namespace millrace::engine::test

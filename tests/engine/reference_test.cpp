// Logits against an independent implementation (PyTorch, float32): tests/data/reference/README.md has the format.

#include "engine/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace millrace::engine {
namespace {

using namespace test;

TEST(Reference, DraftInF16) {
  const Agreement found = agreement(roomy(draft_path()), MILLRACE_TEST_DATA "/reference/demo-draft.bin");
  EXPECT_LE(found.relative_l2, 2e-3);
  EXPECT_EQ(found.same_argmax, 1);
}

TEST(Reference, QuantizedMixtureStaysClose) {
  const Agreement found = agreement(roomy(moe_path()), MILLRACE_TEST_DATA "/reference/demo-moe.bin");
  EXPECT_LE(found.relative_l2, 0.15);
  EXPECT_GE(found.same_argmax, 0.9);
}

/// A tiny random checkpoint of tools/reference-models and what transformers answers with it.
struct Fixture {
  std::string_view model;
  std::string_view reference;
};

class Checkpoint : public testing::TestWithParam<Fixture> {};

TEST_P(Checkpoint, AnswersAsTransformersDoes) {
  const std::string folder = MILLRACE_TEST_DATA "/reference/";
  const Agreement found = agreement(roomy(folder + std::string(GetParam().model) + ".gguf"),
                                    folder + std::string(GetParam().reference) + ".bin");
  EXPECT_LE(found.relative_l2, 2e-3);
  EXPECT_EQ(found.same_argmax, 1);
}

INSTANTIATE_TEST_SUITE_P(Reference, Checkpoint,
                         testing::Values(Fixture{"llama", "llama"}, Fixture{"llama3", "llama3"},
                                         Fixture{"mixtral", "mixtral"}, Fixture{"mistral-nemo", "mistral-nemo"},
                                         Fixture{"qwen2", "qwen2"}, Fixture{"qwen3", "qwen3"},
                                         Fixture{"qwen3moe", "qwen3moe"}, Fixture{"gemma3", "gemma3"},
                                         Fixture{"glm4moe", "glm4moe"}, Fixture{"granite", "granite"},
                                         Fixture{"minimax-m2", "minimax-m2"}, Fixture{"phi3", "phi3"}),
                         [](const auto& info) {
                           std::string name(info.param.reference);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace millrace::engine

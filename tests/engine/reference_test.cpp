// Logits against an independent implementation (PyTorch, float32): tests/data/reference/README.md has the format.

#include "engine/reference.h"

#include <gtest/gtest.h>

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

/// The bytes that people have: experts in MXFP4, whose products take activations of 8 bits.
TEST(Reference, GptOssInMxfp4StaysClose) {
  const std::string path = MILLRACE_TEST_DATA "/reference/gpt-oss";
  const Agreement found = agreement(roomy(path + ".gguf"), path + ".bin");
  EXPECT_LE(found.relative_l2, 0.05);
  EXPECT_GE(found.same_argmax, 0.9);
}

/// Scores that are not divided by a root of the heads' width feel how keys are rounded.
TEST(Reference, Gemma4WithKvInF16StaysClose) {
  const std::string path = MILLRACE_TEST_DATA "/reference/gemma4";
  const Agreement found = agreement(roomy(path + ".gguf"), path + ".bin");
  EXPECT_LE(found.relative_l2, 5e-3);
  EXPECT_EQ(found.same_argmax, 1);
}

/// The cells of the table in docs/reference/models-and-file-types.md that need no GPU; tests/cuda_engine has the
/// others.
class Checkpoints : public testing::TestWithParam<Cell> {};

TEST_P(Checkpoints, AnswerAsTransformersDoes) {
  const auto& [checkpoint, place] = GetParam();
  EngineOptions options = roomy(checkpoint.model());
  if (place.place == Place::cpu_disk && checkpoint.runs(place.place)) {
    options.memory.tile_bytes = 4096;
    options.memory.ram_bytes = 1;
    options.demand.context_tokens = checkpoint.context;
    options.kv.dtype = checkpoint.kv;
    options.demand.max_sequences = 3;
    const std::optional<std::uint64_t> smallest = named_ram(Engine::create(options).status().message());
    ASSERT_TRUE(smallest.has_value());
    options.memory.ram_bytes = *smallest;
  }
  expect_the_cell(options, GetParam());
}

TEST_P(Checkpoints, StayNearWithRotatedKv) {
  const auto& [checkpoint, place] = GetParam();
  if (place.place != Place::cpu_ram || !checkpoint.runs(place.place)) GTEST_SKIP();
  expect_near_with_rotated_kv(roomy(checkpoint.model()), checkpoint);
}

INSTANTIATE_TEST_SUITE_P(Reference, Checkpoints,
                         testing::Combine(testing::ValuesIn(kCheckpoints), testing::Values(kPlaces[0], kPlaces[1])),
                         test_name);

}  // namespace
}  // namespace millrace::engine

// Logits against an independent implementation (PyTorch, float32): tests/data/reference/README.md has the format.

#include "engine/reference.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace millrace::engine {
namespace {

using namespace test;

TEST(Reference, DraftInF16) {
  const Agreement found = agreement(roomy(draft_path()), MILLRACE_TEST_DATA "/reference/demo-draft.bin");
  EXPECT_LE(found.relative_l2, 2e-3);
  EXPECT_EQ(found.same_argmax, 1);
}

TEST(Reference, MixtureInF16) {
  const std::string path = MILLRACE_SOURCE_DIR "/../shared/models/demo-moe-f16.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the F16 mixture (41 MB) is not part of the repository";
  const Agreement found = agreement(roomy(path), MILLRACE_TEST_DATA "/reference/demo-moe.bin");
  EXPECT_LE(found.relative_l2, 2e-3);
  EXPECT_EQ(found.same_argmax, 1);
}

TEST(Reference, QuantizedMixtureStaysClose) {
  const Agreement found = agreement(roomy(moe_path()), MILLRACE_TEST_DATA "/reference/demo-moe.bin");
  EXPECT_LE(found.relative_l2, 0.15);
  EXPECT_GE(found.same_argmax, 0.9);
}

}  // namespace
}  // namespace millrace::engine

// Files with a scale beside their matrices (NAME.scale), as those of NVFP4 have them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/reference.h"
#include "engine/scaled_file.h"

namespace millrace::engine {
namespace {

using namespace test;

std::vector<float> scaled_logits(const EngineOptions& options, const std::string& logits_path) {
  const auto engine = make(options);
  std::vector<float> logits;
  if (engine == nullptr) return logits;
  Request request = greedy(read_references(logits_path).front().tokens, 1);
  keep_logits(request, logits);
  EXPECT_TRUE(engine->submit(std::move(request)).ok());
  drain(*engine);
  return logits;
}

/// Every architecture: matrices are divided by numbers that products are multiplied by again, and answers stay.
class Scales : public testing::TestWithParam<Checkpoint> {};

TEST_P(Scales, MultiplyTheirProducts) {
  const ScaledFile file(GetParam().model(), {});
  EXPECT_GE(file.scales(), 1);
  EngineOptions options = roomy(file.path());
  expect_the_reference(options, GetParam());
}

TEST_P(Scales, ComeFromTheDiskInTheOrderOfTheirUse) {
  const ScaledFile file(GetParam().model(), {});
  EngineOptions options = roomy(file.path());
  options.memory.tile_bytes = 4096;
  options.memory.ram_bytes = 1;
  options.demand.context_tokens = GetParam().context;
  options.kv.dtype = GetParam().kv;
  const std::optional<std::uint64_t> smallest = named_ram(Engine::create(options).status().message());
  ASSERT_TRUE(smallest.has_value());
  options.memory.ram_bytes = *smallest;
  const Agreement found = agreement(options, GetParam().logits());
  EXPECT_LE(found.relative_l2, 2e-3);
  EXPECT_EQ(found.same_argmax, 1);
}

/// Dividing by powers of two rounds nothing, so that a scale that is forgotten, or comes on the wrong side of a bias,
/// is the only way to other bits.
TEST_P(Scales, ThatArePowersOfTwoChangeNoBit) {
  const ScaledFile scaled(GetParam().model(), {.powers = true});
  const ScaledFile plain(GetParam().model(), {.multiplied = true, .powers = true});
  EngineOptions options = roomy(scaled.path());
  options.demand.context_tokens = GetParam().context;
  options.kv.dtype = GetParam().kv;
  const std::vector<float> with_scales = scaled_logits(options, GetParam().logits());
  options.model.path = plain.path();
  const std::vector<float> without = scaled_logits(options, GetParam().logits());
  ASSERT_FALSE(without.empty());
  EXPECT_EQ(with_scales, without);
}

INSTANTIATE_TEST_SUITE_P(Reference, Scales, testing::ValuesIn(kCheckpoints),
                         [](const testing::TestParamInfo<Checkpoint>& info) {
                           return test_name({{info.param, kPlaces[0]}, info.index});
                         });

/// How far a file of matrices of this type, with scales, is from one of the same numbers multiplied, in F32.
double distance(const std::string& reference, DType dtype) {
  const ScaledFile scaled(reference + ".gguf", {dtype}), plain(reference + ".gguf", {dtype, true});
  const std::vector<float> a = scaled_logits(roomy(scaled.path()), reference + ".bin"),
                           b = scaled_logits(roomy(plain.path()), reference + ".bin");
  EXPECT_FALSE(a.empty());
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

/// What is left is that activations become int8, as they do with Q8_0.
TEST(ScalesOfNvfp4, AnswerAsTheSameNumbersInFloats) {
  for (const char* name : {"llama3", "qwen2", "qwen3moe", "gpt-oss", "nemotron-h-moe"}) {
    SCOPED_TRACE(name);
    const std::string reference = MILLRACE_TEST_DATA "/reference/" + std::string(name);
    const double of_nvfp4 = distance(reference, DType::nvfp4), of_q8_0 = distance(reference, DType::q8_0);
    std::printf("%s: relative L2 %.2e, of Q8_0 %.2e\n", name, of_nvfp4, of_q8_0);
    EXPECT_LE(of_nvfp4, 1.5 * of_q8_0);
  }
}

/// What is no factor of a product that this version knows must not be left out of the sums.
TEST(ScalesOfNvfp4, AreRefusedWhereTheyCannotBeApplied) {
  for (const char* name : {"blk.0.ffn_gate_inp.scale", "token_embd.scale", "blk.1.attn_norm.scale"}) {
    const ScaledFile file(MILLRACE_TEST_DATA "/reference/qwen3moe.gguf", {.more = name});
    const auto engine = Engine::create(roomy(file.path()));
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), Code::unsupported);
    EXPECT_NE(engine.status().message().find(name), std::string::npos) << engine.status().message();
  }
  for (const float number : {std::nanf(""), INFINITY}) {
    const ScaledFile damaged(MILLRACE_TEST_DATA "/reference/llama3.gguf",
                             {.more = "blk.0.attn_q.scale", .number = number});
    const auto engine = Engine::create(roomy(damaged.path()));
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), Code::corrupt);
    EXPECT_NE(engine.status().message().find("blk.0.attn_q.scale"), std::string::npos) << engine.status().message();
  }
  // Those of inputs say how others round activations; ours have scales of their own.
  const ScaledFile of_input(MILLRACE_TEST_DATA "/reference/llama3.gguf", {.more = "blk.0.attn_q.input_scale"});
  EXPECT_TRUE(Engine::create(roomy(of_input.path())).ok());
}

}  // namespace
}  // namespace millrace::engine

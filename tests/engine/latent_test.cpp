// Layers that keep latents: what their KV takes, and that chunks, batches, beginnings in common, sessions that go back
// and the prompt cache never change a bit. DeepSeek V3's checkpoint: three heads over latents of 64 + 32 channels; and
// GLM-5's, where an indexer chooses 24 of the tokens, for two layers of three.
#include <gtest/gtest.h>

#include <filesystem>
#include <string_view>
#include <tuple>

#include "engine/latents.h"
#include "engine/reference.h"
#include "engine/support.h"
#include "modelfile/quantize.h"

namespace millrace::engine {
namespace {

using namespace test;

class Latents : public testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  static const char* name() { return std::get<0>(GetParam()); }
  static DType dtype() { return std::get<1>(GetParam()); }
  static std::string file() { return latent_file(name()); }
  static MakeLatentOptions maker() {
    return [](const std::string& of, std::int64_t batch) { return latent_options(of, batch, dtype()); };
  }
};

TEST(PlanOnly, LeavesBlocksThatGuessTokensOnTheDisk) {
  const Expected<Planned> planned = plan_only(roomy(MILLRACE_TEST_DATA "/reference/glm-4.7-flash.gguf"));
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->draft_blocks, 1);
  EXPECT_GT(planned->draft_block_bytes, 0u);
}

TEST(KvOfFourBits, IsRefusedInWordsWhereItDoesNotFit) {
  EngineOptions options = roomy(MILLRACE_TEST_DATA "/reference/deepseek-v3.gguf");
  options.kv.dtype = DType::q4_0;
  const Status status = Engine::create(options).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_EQ(status.message(), "--kv q4_0 is not for latents, which this model keeps; use --kv q8_0");
  options.kv.dtype = DType::q4_k;
  EXPECT_NE(Engine::create(options).status().message().find("not as q4_k; use --kv f16"), std::string::npos);
}

TEST_P(Latents, TakeARowATokenAndLayer) {
  const auto engine = make(maker()(file(), 512));
  const kv::Layout layout = engine->model().program().layout.with(dtype(), kv::kOnHost);
  const std::int64_t latent = row_bytes(dtype(), 64 + 32);
  for (const kv::Group& group : layout.groups()) EXPECT_EQ(group.keeps, kv::Keeps::latent);
  if (std::string_view(name()) == "deepseek-v3") {
    EXPECT_EQ(layout.groups().size(), 1u);
    EXPECT_EQ(layout.bytes_per_token(), 2 * latent);
  } else {  // index keys of two layers of three, which lose no bits with the others
    ASSERT_EQ(layout.groups().size(), 2u);
    EXPECT_EQ(layout.bytes_per_token(), 3 * latent + 2 * 64 * (dtype() == DType::f32 ? 4 : 2));
  }
}

TEST_P(Latents, ChunksOfAnyLengthGiveTheSameBits) {
  expect_chunks_of_any_length_to_give_the_same_bits(maker(), file());
  expect_chunks_of_any_length_to_give_the_same_bits(maker(), latent_file("deepseek-v2-lite-unsplit"));
}

TEST(ChosenKeys, AreAllUpToTheirNumber) {
  expect_all_keys_up_to_their_number(
      [](const std::string& of, std::int64_t batch) { return latent_options(of, batch, DType::f16); });
}

TEST_P(Latents, ASessionGoesBackAndAnswersTheSame) { expect_a_session_to_go_back(maker(), file()); }
TEST_P(Latents, RequestsThatBeginAlikeShareBlocksAndPasses) {
  expect_requests_that_begin_alike_to_share_blocks(maker(), file());
}
TEST_P(Latents, ARestartTakesThePromptFromTheDisk) {
  expect_a_restart_to_take_the_prompt_from_the_disk(maker(), file(),
                                                    std::string(name()) + std::string(info(dtype()).name));
}

/// Products by heads take quantized weights: split, and transposed where keys and values are one tensor. What 8 bits of
/// a state change here and there is an expert: llama.cpp is 0.05 and 0.16 from two of these.
TEST(LatentWeights, QuantizedOnesStayClose) {
  for (const char* name : {"deepseek-v3", "glm-4.7-flash", "deepseek-v2-lite", "deepseek-v2-lite-unsplit"}) {
    SCOPED_TRACE(name);
    const std::string reference = std::string(MILLRACE_TEST_DATA "/reference/") + name;
    const std::string file = own_path("latent-quantized.gguf");
    modelfile::QuantizeOptions to;
    to.type = modelfile::QuantizeType::q8_0;
    ASSERT_TRUE(modelfile::quantize(reference + ".gguf", file, to).ok());
    const std::string answers = reference.substr(0, reference.find("-unsplit")) + ".bin";
    const Agreement found = agreement(roomy(file), answers);
    EXPECT_LE(found.relative_l2, 0.2);
    EXPECT_GE(found.same_argmax, 0.95);
    std::filesystem::remove(file);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Latents,
                         testing::Combine(testing::Values("deepseek-v3", "glm-dsa"),
                                          testing::Values(DType::f16, DType::f32, DType::q8_0)),
                         [](const auto& of) {
                           const bool indexed = std::string_view(std::get<0>(of.param)) == "glm-dsa";
                           return std::string(millrace::info(std::get<1>(of.param)).name) + (indexed ? "_indexed" : "");
                         });

}  // namespace
}  // namespace millrace::engine

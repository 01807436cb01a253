// Assistants beside the model that they guess for: their units, and what is said of those that are damaged or of
// another model.
#include "model/gemma4_assistant.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "model/head_file.h"

namespace millrace::model {
namespace {

using test::HeadFile;

void expect_refused(Code code, const std::string& word, const std::function<void(HeadFile&)>& change,
                    const std::string& target = "gemma4") {
  SCOPED_TRACE(word);
  HeadFile file("gemma4-assistant");
  change(file);
  const Status status = file.beside(target).status();
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
}

TEST(Gemma4Assistant, OfAnotherModelIsRefusedByName) {
  const auto as_it_is = [](HeadFile&) {};
  expect_refused(Code::unsupported, "guesses for models of gemma4, and this one is of llama", as_it_is, "llama");
  expect_refused(Code::unsupported, "this one is of gemma3", as_it_is, "gemma3");
  expect_refused(Code::invalid_argument, "layer 0 of the assistant has 2 heads of 32 channels", [](HeadFile& file) {
    file.set("attention.key_length_swa", std::uint32_t{32});
    file.set("rope.dimension_count_swa", std::uint32_t{32});
  });
  expect_refused(Code::invalid_argument, "is for a model of 64 channels, and this one has 32",
                 [](HeadFile& file) { file.set("embedding_length_out", std::uint32_t{64}); });
  expect_refused(Code::invalid_argument, "guesses among 81 tokens, and the model has 80",
                 [](HeadFile& file) { file.tensors["token_embd.weight"].shape.back() = 81; });
}

TEST(Gemma4Assistant, ThatIsDamagedIsRefusedByName) {
  expect_refused(Code::not_found, "embedding_length_out",
                 [](HeadFile& file) { file.keys.erase("gemma4-assistant.embedding_length_out"); });
  for (const char* name : {"nextn.pre_projection.weight", "nextn.post_projection.weight", "output_norm.weight",
                           "token_embd.weight", "blk.0.attn_q.weight", "blk.2.layer_output_scale.weight"})
    expect_refused(Code::not_found, name, [&](HeadFile& file) { file.tensors.erase(name); });
  for (const char* name : {"nextn.pre_projection.weight", "blk.1.attn_q_norm.weight", "blk.1.ffn_up.weight"})
    expect_refused(Code::corrupt, name, [&](HeadFile& file) { file.tensors[name].shape.back() += 8; });
  for (const char* name : {"blk.0.attn_sinks.weight", "blk.3.attn_q.weight", "markov.weight"})
    expect_refused(Code::unsupported, name, [&](HeadFile& file) { file.tensors[name] = {DType::f32, {32}}; });
}

/// The rows by which other programs leave parts of its head out are not read.
TEST(Gemma4Assistant, HasItsUnitsAside) {
  const auto plain = load(*modelfile::Model::open(test::data_file("reference/gemma4")), {});
  ASSERT_TRUE(plain.ok());
  const std::size_t own = (*plain)->units().units().size();
  HeadFile file("gemma4-assistant");
  file.tensors["masked_embd_centroids.weight"] = {DType::f32, {64, 8}};
  const auto beside = file.beside("gemma4");
  ASSERT_TRUE(beside.ok()) << beside.status().message();
  const auto& units = (*beside)->units().units();
  ASSERT_EQ(units.size(), own + 3) << "one for each of its layers";
  for (std::size_t u = 0; u < units.size(); ++u) {
    EXPECT_EQ(units[u].aside, u >= own) << u;
    if (u >= own) {
      EXPECT_EQ(units[u].layer, (*plain)->hyperparameters().layers) << u;
    }
  }
  EXPECT_TRUE((*beside)->draft_passes()->reads_model);
  EXPECT_EQ((*beside)->draft_passes()->dim, 32);
  EXPECT_EQ((*beside)->draft_passes()->program.layer_count(), 3);
  EXPECT_EQ((*beside)->program().steps.size(), (*plain)->program().steps.size());
}

}  // namespace
}  // namespace millrace::model

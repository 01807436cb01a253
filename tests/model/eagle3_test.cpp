// Heads of EAGLE-3 beside the model that they guess for: their units, and what is said of heads that are damaged or of
// another model.
#include "model/eagle3.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/head_file.h"

namespace millrace::model {
namespace {

using test::HeadFile;

void set_layers(HeadFile& head, std::vector<std::int32_t> layers) {
  head.set("target_layers", modelfile::array_value(std::move(layers)));
}

void expect_refused(Code code, const std::string& word, const std::function<void(HeadFile&)>& change,
                    const std::string& head = "eagle3", const std::string& target = "llama3") {
  SCOPED_TRACE(word);
  HeadFile file(head);
  change(file);
  const Status status = file.beside(target).status();
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
}

TEST(Eagle3Head, OfAnotherModelIsRefusedByName) {
  const auto as_it_is = [](HeadFile&) {};
  expect_refused(Code::invalid_argument, "is for a model of 32 channels, and this one has 128", as_it_is, "eagle3",
                 "llama");
  expect_refused(Code::invalid_argument, "is for a model of 64 channels, and this one has 32",
                 [](HeadFile& head) { head.set("target_hidden_size", std::uint32_t{64}); });
  expect_refused(Code::invalid_argument, "reads layer 9 of a model, and this one has", [](HeadFile& head) {
    set_layers(head, {0, 1, 9});
  });
  expect_refused(Code::invalid_argument, "guesses token 80, and the model has 80",
                 [](HeadFile& head) { head.tensors["d2t"].integers.back() = 80; });
  expect_refused(
      Code::invalid_argument, "embeddings of 81 tokens, and the model has 80",
      [](HeadFile& head) { head.tensors["token_embd.weight"].shape.back() = 81; }, "eagle3-wide");
  expect_refused(
      Code::invalid_argument, "states of 64 channels and no token_embd.weight of its own",
      [](HeadFile& head) { head.tensors.erase("token_embd.weight"); }, "eagle3-wide");
  expect_refused(Code::invalid_argument, "output.weight has 48 rows, and the model's vocabulary has 80",
                 [](HeadFile& head) { head.tensors.erase("d2t"); });
}

TEST(Eagle3Head, OfAModelWithoutOneStreamOfStatesIsRefused) {
  for (const char* target : {"gemma3n"}) {
    expect_refused(
        Code::unsupported, "no head that guesses for models of", [](HeadFile&) {}, "eagle3", target);
  }
}

TEST(Eagle3Head, ThatIsDamagedIsRefusedByName) {
  expect_refused(Code::unsupported, "a head of 2 layers",
                 [](HeadFile& head) { head.set("block_count", std::uint32_t{2}); });
  expect_refused(Code::corrupt, "has 2 layers, not 3", [](HeadFile& head) { set_layers(head, {0, 1}); });
  expect_refused(Code::corrupt, "not in their order", [](HeadFile& head) { set_layers(head, {1, 0, 2}); });
  expect_refused(Code::corrupt, "not in their order", [](HeadFile& head) { set_layers(head, {-1, 0, 2}); });
  expect_refused(Code::corrupt, "eagle3.norm_before_fc", [](HeadFile& head) { head.set("norm_before_fc", true); });
  expect_refused(
      Code::corrupt, "eagle3.norm_before_fc", [](HeadFile& head) { head.tensors.erase("enc.output_norm.weight"); },
      "eagle3-wide");
  expect_refused(Code::corrupt, "d2t is no vector of I64", [](HeadFile& head) {
    head.tensors["d2t"] = {DType::f32, {48}};
  });
  expect_refused(Code::invalid_argument, "guesses token -1",
                 [](HeadFile& head) { head.tensors["d2t"].integers.front() = -1; });
  expect_refused(Code::corrupt, "d2t is for output.weight, which is missing",
                 [](HeadFile& head) { head.tensors.erase("output.weight"); });
  expect_refused(Code::corrupt, "output.weight has 40 rows, and d2t has 48",
                 [](HeadFile& head) { head.tensors["output.weight"].shape.back() = 40; });
  for (const char* name : {"fc.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.0.attn_norm_2.weight",
                           "blk.0.attn_q.weight", "blk.0.ffn_down.weight"})
    expect_refused(Code::not_found, name, [&](HeadFile& head) { head.tensors.erase(name); });
  for (const char* name : {"fc.weight", "blk.0.attn_k.weight", "blk.0.attn_norm.weight", "blk.0.ffn_up.weight"})
    expect_refused(Code::corrupt, name, [&](HeadFile& head) { head.tensors[name].shape.back() += 8; });
  for (const char* name : {"blk.0.attn_sinks.weight", "blk.1.attn_q.weight", "markov.weight"})
    expect_refused(Code::unsupported, name, [&](HeadFile& head) { head.tensors[name] = {DType::f32, {32}}; });
}

/// Its units stand behind the model's, or in a table of their own with copies of those that it shares.
TEST(Eagle3Head, HasItsUnitsAsideOrApart) {
  const auto plain = load(*modelfile::Model::open(test::data_file("reference/llama3")), {});
  ASSERT_TRUE(plain.ok());
  const std::size_t own = (*plain)->units().units().size();
  for (const bool wide : {false, true}) {
    SCOPED_TRACE(wide);
    const HeadFile file(wide ? "eagle3-wide" : "eagle3");
    const auto aside = file.beside("llama3"), apart = file.beside("llama3", true);
    ASSERT_TRUE(aside.ok() && apart.ok()) << apart.status().message();
    const auto& beside = (*aside)->units().units();
    ASSERT_GT(beside.size(), own);
    for (std::size_t u = 0; u < beside.size(); ++u) EXPECT_EQ(beside[u].aside, u >= own) << u;
    EXPECT_FALSE((*aside)->draft_passes()->units.has_value());
    EXPECT_EQ((*apart)->units().units().size(), own);
    EXPECT_EQ((*apart)->program().steps.size(), (*aside)->program().steps.size());
    const model::DraftPasses& passes = *(*apart)->draft_passes();
    ASSERT_TRUE(passes.units.has_value());
    // A table of embeddings, the head's own or the model's, and the layer with what stands around it.
    ASSERT_EQ(passes.units->units().size(), 2u);
    const residency::Unit& table = passes.units->units().front();
    EXPECT_EQ(table.parts.front().file, wide ? 1 : 0);
    EXPECT_EQ(passes.units->units().back().parts.front().file, 1);
    for (const residency::Unit& unit : passes.units->units()) EXPECT_TRUE(unit.aside);
  }
}

}  // namespace
}  // namespace millrace::model

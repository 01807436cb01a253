// Qwen3.8-Flash-Next: what its layers keep and read, and what a file lacks or has otherwise is refused by name.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "model/tiny_model.h"

namespace millrace::model {
namespace {

using residency::UnitKind;
using residency::WeightRef;
using test::TinyModel;

Status load_status(const TinyModel& tiny) { return load(tiny.open("qwen4exp_test"), {}).status(); }

TEST(Qwen4Exp, UsesWeightsInTheOrderOfTheirUnits) {
  const auto model = load(TinyModel::qwen4exp().open("qwen4exp_test"), {});
  ASSERT_TRUE(model.ok()) << model.status().message();
  std::vector<WeightRef> expected;
  const std::vector<residency::Unit>& units = (*model)->units().units();
  for (std::size_t unit = 0; unit < units.size(); ++unit)
    for (std::size_t part = 0; part < units[unit].parts.size(); ++part)
      expected.push_back({static_cast<std::int32_t>(unit), static_cast<std::int32_t>(part)});
  EXPECT_EQ((*model)->program().of_passes(false).weights(), expected);
  std::vector<std::int64_t> rows;
  for (const residency::Unit& unit : units)
    if (unit.kind == UnitKind::embedding) rows.push_back(unit.rows_of_token);
  EXPECT_EQ(rows, (std::vector<std::int64_t>{1, 4})) << "of the embedding and of the table of n-grams";
}

TEST(Qwen4Exp, KeepsStatesKeysOfBlocksAndTokens) {
  const auto model = load(TinyModel::qwen4exp().open("qwen4exp_test"), {});
  ASSERT_TRUE(model.ok()) << model.status().message();
  const kv::Layout& layout = (*model)->program().layout;
  ASSERT_EQ(layout.layers(), 2 + 2 + 2) << "two layers; keys of blocks and their inputs; tokens and the convolution's";
  EXPECT_EQ(layout.group_of(0).state, (kv::StateShape{3, 256, 4, 32, 32}));
  EXPECT_EQ(layout.group_of(1).index_dim, 0);
  EXPECT_EQ(layout.group_of(2).index_dim, 16);
  EXPECT_EQ(layout.group_of(2).ratio, 4);
  EXPECT_EQ(layout.group_of(2).v_dim, 0);
  EXPECT_EQ(layout.group_of(3).v_dim, 16 + 3);
  EXPECT_EQ(layout.group_of(3).window, 4);
  EXPECT_EQ(layout.group_of(4).state, (kv::StateShape{2, 1, 0, 0, 0}));
  EXPECT_EQ(layout.group_of(5).state, (kv::StateShape{9, 192, 0, 0, 0}));
  for (const exec::Step& step : (*model)->program().steps) {
    if (step.kind != exec::Step::Kind::attention) continue;
    EXPECT_EQ(step.attention.selected, 8);
    EXPECT_EQ(step.attention.most_selected(), 11);
  }
}

TEST(Qwen4Exp, AttendsToAllAndWithoutNgramsWhereTheFileHasNone) {
  TinyModel tiny = TinyModel::qwen4exp();
  tiny.set_of_layers("attention.compress_ratios", {0, 0});
  tiny.set_of_layers("ple.layers", {});
  EXPECT_NE(load_status(tiny).message().find("blk.1.indexer."), std::string::npos) << load_status(tiny).message();
  for (const char* indexer : {"q_proj", "k_proj", "q_norm", "k_norm"})
    tiny.remove("blk.1.indexer." + std::string(indexer) + ".weight");
  EXPECT_NE(load_status(tiny).message().find("blk.1.ple_"), std::string::npos) << load_status(tiny).message();
  for (const char* ple : {"key", "value", "norm_key", "norm_query", "norm_conv", "conv1d"})
    tiny.remove("blk.1.ple_" + std::string(ple) + ".weight");
  const auto model = load(tiny.open("qwen4exp_test"), {});
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->program().layout.layers(), 2);
}

TEST(Qwen4Exp, WhatIsMissingIsNamed) {
  for (const char* tensor :
       {"blk.1.indexer.k_norm.weight", "blk.1.indexer.q_proj.weight", "blk.0.hc_attn_inject.weight",
        "blk.1.hc_ffn_up.weight", "output_hc_norm.weight", "blk.1.ple_conv1d.weight", "blk.1.ple_norm_query.weight",
        "per_layer_token_embd.weight", "blk.0.attn_gate.weight", "blk.0.ffn_gate_inp_shexp.weight"}) {
    TinyModel tiny = TinyModel::qwen4exp();
    tiny.remove(tensor);
    EXPECT_EQ(load_status(tiny).code(), Code::not_found) << tensor;
    EXPECT_NE(load_status(tiny).message().find(tensor), std::string::npos) << load_status(tiny).message();
  }
  for (const char* key : {"hyper_connection.count", "hyper_connection.low_rank", "attention.indexer.top_k",
                          "ple.ngram_size", "ple.head_offsets", "ple.eos_token_id"}) {
    TinyModel tiny = TinyModel::qwen4exp();
    tiny.keys.erase("qwen4exp." + std::string(key));
    EXPECT_EQ(load_status(tiny).code(), Code::not_found) << key;
    EXPECT_NE(load_status(tiny).message().find(key), std::string::npos) << load_status(tiny).message();
  }
}

TEST(Qwen4Exp, WhatCannotBeIsRefusedByName) {
  for (const std::int32_t ratio : {1, 3, 128}) {
    TinyModel tiny = TinyModel::qwen4exp();
    tiny.set_of_layers("attention.compress_ratios", {1, ratio});
    EXPECT_EQ(load_status(tiny).code(), Code::unsupported) << ratio;
    EXPECT_NE(load_status(tiny).message().find("compress_ratios is " + std::to_string(ratio) + " in layer 1"),
              std::string::npos)
        << load_status(tiny).message();
  }
  const std::pair<const char*, std::uint32_t> cannot_be[] = {
      {"hyper_connection.count", 1},  {"hyper_connection.low_rank", 0},
      {"attention.indexer.top_k", 6}, {"attention.indexer.top_k", 0},
      {"ple.ngram_size", 1},          {"ple.ngram_size", 9},
      {"ple.eos_token_id", 96},       {"ple.conv_kernel", 9},
      {"ple.image_token_id", 96},     {"attention.indexer.key_length", 8}};
  for (const auto& [key, value] : cannot_be) {
    TinyModel tiny = TinyModel::qwen4exp();
    tiny.set(key, value);
    const Status status = load_status(tiny);
    EXPECT_TRUE(status.code() == Code::corrupt || status.code() == Code::unsupported) << key << " " << value;
    EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
  }
  const std::pair<const char*, std::vector<std::int32_t>> cannot_list[] = {{"ple.layers", {0, 1}},
                                                                           {"ple.layers", {2}},
                                                                           {"ple.head_offsets", {0, 11, 24, 42}},
                                                                           {"ple.head_vocab_sizes", {11, 13, 17, 0}},
                                                                           {"ple.layer_multipliers", {3, 5}}};
  for (const auto& [key, values] : cannot_list) {
    TinyModel tiny = TinyModel::qwen4exp();
    tiny.set_of_layers(key, values);
    const Status status = load_status(tiny);
    EXPECT_TRUE(status.code() == Code::corrupt || status.code() == Code::unsupported) << key;
    EXPECT_NE(status.message().find("ple."), std::string::npos) << status.message();
  }
  LoadOptions second;
  second.stage = {1, 2};
  EXPECT_EQ(load(TinyModel::qwen4exp().open("qwen4exp_test"), second).status().code(), Code::unsupported);
}

}  // namespace
}  // namespace millrace::model

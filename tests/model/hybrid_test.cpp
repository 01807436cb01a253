// Layers that keep a state: what a file must have for them, and the words about one that has not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "model/model.h"
#include "model/tiny_model.h"

namespace millrace::model {
namespace {

using exec::Step;
using millrace::test::TinyModel;

std::string refusal(const TinyModel& model, Code code) {
  const auto loaded = load(model.open("hybrid"), {});
  EXPECT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), code) << loaded.status().message();
  return loaded.status().message();
}

void expect_named(const std::string& message, const std::string& name) {
  EXPECT_NE(message.find(name), std::string::npos) << message;
}

TinyModel changed(TinyModel model, const char* key, unsigned value) {
  model.set(key, value);
  return model;
}

TEST(Hybrid, KeepsAStateWhereALayerDoesNotAttend) {
  const auto model = load(TinyModel::qwen35().open("hybrid"), {}).value();
  const kv::Layout& layout = model->program().layout;
  ASSERT_EQ(layout.groups().size(), 2u);
  EXPECT_EQ(layout.group_of(0).state, (kv::StateShape{3, 256, 4, 32, 32}));
  EXPECT_FALSE(layout.group_of(1).is_state());
  std::vector<Step::Kind> kinds;
  for (const Step& step : model->program().steps) kinds.push_back(step.kind);
  const auto count = [&](Step::Kind kind) { return std::count(kinds.begin(), kinds.end(), kind); };
  EXPECT_EQ(count(Step::Kind::delta_rule), 1);
  EXPECT_EQ(count(Step::Kind::convolve), 1);
  EXPECT_EQ(count(Step::Kind::attention), 1);
  EXPECT_EQ(count(Step::Kind::sigmoid_gate), 1);
}

TEST(Hybrid, LayersMayBeListed) {
  TinyModel file = TinyModel::qwen35();
  file.keys.erase("qwen35.full_attention_interval");
  file.keys["qwen35.attention.recurrent_layers"] =
      modelfile::Value(std::make_shared<const modelfile::Array>(modelfile::Array{std::vector<bool>{true, false}}));
  const auto model = load(file.open("hybrid"), {});
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_TRUE((*model)->program().layout.group_of(0).is_state());
  EXPECT_FALSE((*model)->program().layout.group_of(1).is_state());
}

TEST(Hybrid, EveryTensorOfAStateIsMissedByName) {
  for (const char* name : {"attn_qkv.weight", "attn_gate.weight", "ssm_beta.weight", "ssm_alpha.weight", "ssm_a",
                           "ssm_dt.bias", "ssm_conv1d.weight", "ssm_norm.weight", "ssm_out.weight"}) {
    TinyModel model = TinyModel::qwen35();
    model.remove(std::string("blk.0.") + name);
    expect_named(refusal(model, Code::not_found), name);
  }
}

TEST(Hybrid, WhatAStateCannotBeIsRefusedByItsKey) {
  expect_named(refusal(changed(TinyModel::qwen35(), "ssm.group_count", 3), Code::corrupt), "qwen35.ssm.group_count");
  expect_named(refusal(changed(TinyModel::qwen35(), "ssm.inner_size", 130), Code::corrupt), "qwen35.ssm.inner_size");
  expect_named(refusal(changed(TinyModel::qwen35(), "ssm.inner_size", 64), Code::unsupported), "qwen35.ssm.state_size");
  expect_named(refusal(changed(TinyModel::qwen35(), "ssm.state_size", 33), Code::unsupported), "qwen35.ssm.state_size");
  expect_named(refusal(changed(TinyModel::qwen35(), "ssm.conv_kernel", 1), Code::corrupt), "qwen35.ssm.conv_kernel");
  expect_named(refusal(changed(TinyModel::qwen35(), "ssm.time_step_rank", 0), Code::corrupt),
               "qwen35.ssm.time_step_rank");
  expect_named(refusal(changed(TinyModel::qwen35(), "ssm.conv_kernel", 3), Code::corrupt), "blk.0.ssm_conv1d.weight");
  TinyModel without = TinyModel::qwen35();
  without.keys.erase("qwen35.ssm.state_size");
  expect_named(refusal(without, Code::not_found), "qwen35.ssm.state_size");
}

TEST(Hybrid, KimiLinearKeepsStatesBesideLatents) {
  const auto model = load(TinyModel::kimi_linear().open("hybrid"), {}).value();
  const exec::Program& program = model->program();
  ASSERT_EQ(program.layout.groups().size(), 2u);
  EXPECT_EQ(program.layout.group_of(0).state, (kv::StateShape{3, 384, 4, 32, 32}));
  EXPECT_EQ(program.layout.group_of(1).keeps, kv::Keeps::latent);
  std::vector<std::int64_t> first;  // of the convolutions' channels
  for (const Step& step : program.steps) {
    if (step.kind == Step::Kind::convolve) first.push_back(step.convolution.first);
    if (step.kind == Step::Kind::delta_rule) {
      EXPECT_TRUE(step.delta_rule.has_channel_decays(program.buffer(step.c).cols));
    }
    if (step.kind == Step::Kind::attention) {
      EXPECT_EQ(step.attention.scale, 1 / std::sqrt(24.0f));
    }
  }
  EXPECT_EQ(first, (std::vector<std::int64_t>{0, 128, 256}));
  ASSERT_EQ(program.ropes.size(), 1u);
  EXPECT_EQ(program.ropes[0].inv_freq, std::vector<float>(4, 0.0f)) << "nothing turns";
}

TEST(Hybrid, EveryTensorOfKimisDeltaAttentionIsMissedByName) {
  for (const char* name :
       {"attn_q.weight", "attn_k.weight", "attn_v.weight", "ssm_conv1d_q.weight", "ssm_conv1d_k.weight",
        "ssm_conv1d_v.weight", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight",
        "ssm_beta.weight", "ssm_a", "ssm_dt.bias", "ssm_norm.weight", "attn_output.weight"}) {
    TinyModel model = TinyModel::kimi_linear();
    model.remove(std::string("blk.0.") + name);
    expect_named(refusal(model, Code::not_found), name);
  }
}

TEST(Hybrid, WhatKimisDeltaAttentionCannotBeIsRefusedByName) {
  const auto kimi = [](const char* key, unsigned value) { return changed(TinyModel::kimi_linear(), key, value); };
  expect_named(refusal(kimi("kda.head_dim", 48), Code::unsupported), "kimi-linear.kda.head_dim");
  expect_named(refusal(kimi("kda.head_dim", 64), Code::corrupt), "blk.0.attn_q.weight");
  expect_named(refusal(kimi("kda.head_dim", 1), Code::corrupt), "kimi-linear.kda.head_dim");
  expect_named(refusal(kimi("ssm.conv_kernel", 9), Code::corrupt), "kimi-linear.ssm.conv_kernel");
  expect_named(refusal(kimi("ssm.conv_kernel", 3), Code::corrupt), "blk.0.ssm_conv1d_q.weight");
  expect_named(refusal(kimi("kda.gate_lower_bound", 5), Code::unsupported), "kimi-linear.kda.gate_lower_bound");
  TinyModel without = TinyModel::kimi_linear();
  without.keys.erase("kimi-linear.ssm.conv_kernel");
  expect_named(refusal(without, Code::not_found), "kimi-linear.ssm.conv_kernel");
  TinyModel other = TinyModel::kimi_linear();
  other.set_of_layers("attention.head_count_kv", {0, 0});
  expect_named(refusal(other, Code::unsupported), "kimi-linear.attention.head_count_kv");
  other.set_of_layers("attention.head_count_kv", {1, 1});  // the first layer's weights are no attention's
  expect_named(refusal(other, Code::corrupt), "blk.0.attn_q.weight");
  TinyModel flat = TinyModel::kimi_linear();
  flat.tensor("blk.0.ssm_conv1d_v.weight").shape = {4, 128};
  EXPECT_TRUE(load(flat.open("hybrid"), {}).ok()) << "some files lack the middle dimension";
  flat.tensor("blk.0.ssm_conv1d_v.weight").shape = {1, 4, 128};
  expect_named(refusal(flat, Code::corrupt), "blk.0.ssm_conv1d_v.weight");
}

TEST(Hybrid, Ling3BoundsItsDecaysAndGatesItsHeads) {
  const auto model = load(TinyModel::ling3().open("hybrid"), {}).value();
  const exec::Program& program = model->program();
  EXPECT_EQ(program.layout.group_of(0).state, (kv::StateShape{3, 384, 4, 32, 32}));
  EXPECT_NE(program.ropes.at(0).inv_freq, std::vector<float>(4, 0.0f)) << "its heads turn";
  std::vector<std::int64_t> gates;  // columns of those that go through a sigmoid
  for (const Step& step : program.steps) {
    if (step.kind == Step::Kind::decay) {
      EXPECT_EQ(step.least, -5.0f);
    }
    if (step.kind == Step::Kind::sigmoid_gate) gates.push_back(program.buffer(step.b).cols);
  }
  EXPECT_EQ(gates, (std::vector<std::int64_t>{128, 4}));
  for (const char* name : {"blk.0.ssm_f_a.weight", "blk.0.ssm_g_a.weight", "blk.1.attn_gate.weight"}) {
    TinyModel without = TinyModel::ling3();
    without.remove(name);
    expect_named(refusal(without, Code::not_found), name);
  }
  TinyModel other = TinyModel::ling3();
  other.keys.erase("bailingmoe3.kda.gate_lower_bound");
  expect_named(refusal(other, Code::corrupt), "bailingmoe3.kda.gate_lower_bound");
  other.set("kda.gate_lower_bound", 1.0f);
  expect_named(refusal(other, Code::corrupt), "bailingmoe3.kda.gate_lower_bound");
  other = TinyModel::ling3();
  other.set("kda.safe_gate", false);
  expect_named(refusal(other, Code::unsupported), "bailingmoe3.kda.safe_gate");
  other = TinyModel::ling3();
  other.set("swiglu_clamp_exp", 7.0f);
  expect_named(refusal(other, Code::unsupported), "bailingmoe3.swiglu_clamp_exp");
}

TEST(Hybrid, AShortConvolutionKeepsItsLastInputs) {
  const auto model = load(TinyModel::lfm2().open("hybrid"), {}).value();
  const kv::Layout& layout = model->program().layout;
  EXPECT_EQ(layout.group_of(0).state, (kv::StateShape{2, 64, 0, 0, 0}));
  EXPECT_FALSE(layout.group_of(1).is_state());
  for (const char* name : {"blk.0.shortconv.in_proj.weight", "blk.0.shortconv.conv.weight",
                           "blk.0.shortconv.out_proj.weight", "token_embd_norm.weight"}) {
    TinyModel without = TinyModel::lfm2();
    without.remove(name);
    expect_named(refusal(without, Code::not_found), name);
  }
  TinyModel other = TinyModel::lfm2();
  other.set("shortconv.l_cache", 1u);
  expect_named(refusal(other, Code::corrupt), "lfm2.shortconv.l_cache");
  other.set("shortconv.l_cache", 4u);
  expect_named(refusal(other, Code::corrupt), "blk.0.shortconv.conv.weight");
  other.set_of_layers("attention.head_count_kv", {0, 3});
  expect_named(refusal(other, Code::corrupt), "KV heads");
  other.set_of_layers("attention.head_count_kv", {0, 0});
  expect_named(refusal(other, Code::unsupported), "lfm2.attention.head_count_kv");
}

TEST(Hybrid, AScanKeepsItsInputsAndItsStates) {
  const auto model = load(TinyModel::mamba2().open("hybrid"), {}).value();
  const kv::Layout& layout = model->program().layout;
  ASSERT_EQ(layout.groups().size(), 1u);
  EXPECT_EQ(layout.groups()[0].state, (kv::StateShape{3, 192, 4, 16, 32}));
  for (const char* name :
       {"ssm_in.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d", "ssm_dt.bias", "ssm_norm.weight", "ssm_out.weight"}) {
    TinyModel without = TinyModel::mamba2();
    without.remove(std::string("blk.1.") + name);
    expect_named(refusal(without, Code::not_found), name);
  }
  TinyModel without_bias = TinyModel::mamba2();
  without_bias.remove("blk.1.ssm_conv1d.bias");
  EXPECT_TRUE(load(without_bias.open("hybrid"), {}).ok());
  expect_named(refusal(changed(TinyModel::mamba2(), "ssm.group_count", 3), Code::corrupt), "mamba2.ssm.group_count");
  expect_named(refusal(changed(TinyModel::mamba2(), "ssm.inner_size", 130), Code::corrupt), "mamba2.ssm.inner_size");
  expect_named(refusal(changed(TinyModel::mamba2(), "ssm.inner_size", 32), Code::unsupported), "mamba2.ssm.state_size");
  expect_named(refusal(changed(TinyModel::mamba2(), "ssm.state_size", 15), Code::unsupported), "mamba2.ssm.state_size");
  expect_named(refusal(changed(TinyModel::mamba2(), "ssm.state_size", 32), Code::corrupt), "blk.0.ssm_in.weight");
}

TEST(Hybrid, FalconH1KeepsAStateBesideKeysAndValues) {
  const auto loaded = load(TinyModel::falcon_h1().open("hybrid"), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const exec::Program& program = (*loaded)->program();
  const kv::Layout& layout = program.layout;
  ASSERT_EQ(layout.layers(), 4);
  for (const std::int64_t layer : {0, 1}) {
    EXPECT_EQ(layout.group_of(layer).keeps, kv::Keeps::attention);
    EXPECT_EQ(layout.group_of(2 + layer).state, (kv::StateShape{3, 192, 4, 16, 32}));
  }
  std::vector<std::int64_t> scans, attentions;  // layers of the layout
  for (const Step& step : program.steps) {
    if (step.kind == Step::Kind::scan) scans.push_back(step.layer);
    if (step.kind == Step::Kind::attention) attentions.push_back(step.layer);
  }
  EXPECT_EQ(scans, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(attentions, (std::vector<std::int64_t>{0, 1}));
  const auto stage = load(TinyModel::falcon_h1().open("hybrid"), {.stage = {1, 2}});
  ASSERT_TRUE(stage.ok()) << stage.status().message();
  EXPECT_FALSE((*stage)->program().layout.keeps(0));
  EXPECT_TRUE((*stage)->program().layout.has_states());
}

TEST(Hybrid, WhatFalconH1CannotBeIsRefusedByName) {
  for (const char* name : {"ssm_in.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d", "ssm_dt.bias", "ssm_norm.weight",
                           "ssm_out.weight", "attn_q.weight", "attn_output.weight", "ffn_norm.weight"}) {
    TinyModel without = TinyModel::falcon_h1();
    without.remove(std::string("blk.1.") + name);
    expect_named(refusal(without, Code::not_found), name);
  }
  TinyModel bare = TinyModel::falcon_h1();
  for (const char* name : {"ssm_norm.weight", "ssm_conv1d.bias"}) {
    bare.remove(std::string("blk.0.") + name);
    bare.remove(std::string("blk.1.") + name);
  }
  EXPECT_TRUE(load(bare.open("hybrid"), {}).ok());
  bare.add(1, "ssm_norm.weight", {64, 2});
  expect_named(refusal(bare, Code::unsupported), "blk.1.ssm_norm.weight");
  TinyModel other = TinyModel::falcon_h1();
  other.set_of_layers("attention.head_count_kv", {2, 0});
  expect_named(refusal(other, Code::corrupt), "falcon-h1.attention.head_count_kv");
  expect_named(refusal(changed(TinyModel::falcon_h1(), "ssm.inner_size", 130), Code::corrupt),
               "falcon-h1.ssm.inner_size");
  other = TinyModel::falcon_h1();
  other.keys.erase("falcon-h1.ssm.state_size");
  expect_named(refusal(other, Code::not_found), "falcon-h1.ssm.state_size");
  other = TinyModel::falcon_h1();
  other.set("attention.causal", false);
  expect_named(refusal(other, Code::unsupported), "falcon-h1.attention.causal");
}

TEST(Hybrid, ALayerMayBeAFeedForwardAlone) {
  const auto loaded = load(TinyModel::nemotron().open("hybrid"), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const exec::Program& program = (*loaded)->program();
  EXPECT_TRUE(program.layout.keeps(0) && program.layout.keeps(2));
  EXPECT_FALSE(program.layout.keeps(1)) << "it keeps nothing";
  EXPECT_EQ(program.layout.groups().size(), 2u);
  for (const Step& step : program.steps) {
    EXPECT_NE(step.kind, Step::Kind::gated);
    EXPECT_NE(step.kind, Step::Kind::rope);
    EXPECT_EQ(step.kind == Step::Kind::moe, step.experts.count > 0 && !step.experts.gated());
  }
  for (const char* name : {"blk.0.ssm_in.weight", "blk.1.attn_norm.weight", "blk.1.ffn_up_exps.weight",
                           "blk.1.ffn_down_shexp.weight", "blk.1.exp_probs_b.bias", "blk.2.attn_q.weight"}) {
    TinyModel without = TinyModel::nemotron();
    without.remove(name);
    expect_named(refusal(without, Code::not_found), name);
  }
  TinyModel forgetful = TinyModel::nemotron();
  forgetful.set_of_layers("feed_forward_length", {32, 32, 32});
  expect_named(refusal(forgetful, Code::corrupt), "nemotron_h_moe.feed_forward_length");
  TinyModel latent = TinyModel::nemotron();
  latent.add(1, "ffn_latent_down.weight", {64, 32});
  expect_named(refusal(latent, Code::unsupported), "blk.1.ffn_latent_down.weight");
}

TEST(Hybrid, ADraftBlockBehindTheLayersIsNoLayer) {
  TinyModel file = TinyModel::qwen35();
  file.set("block_count", 3u);
  file.set("nextn_predict_layers", 1u);
  file.add(2, "nextn.eh_proj.weight", {128, 64});
  const auto model = load(file.open("hybrid"), {});
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->hyperparameters().layers, 2);
  for (const residency::Unit& unit : (*model)->units().units()) EXPECT_LT(unit.layer, 2);
  const std::vector<residency::Unit>& blocks = (*model)->draft_blocks();
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].layer, 2);
  ASSERT_EQ(blocks[0].parts.size(), 1u);
  EXPECT_EQ(blocks[0].parts[0].name, "blk.2.nextn.eh_proj.weight");
  EXPECT_EQ(blocks[0].parts[0].rows, 64);
  EXPECT_EQ(blocks[0].parts[0].cols, 128);
  EXPECT_EQ(blocks[0].parts[0].offset, file.open("hybrid").find("blk.2.nextn.eh_proj.weight")->offset);
  file.remove("blk.2.nextn.eh_proj.weight");  // a file that was stripped of it
  const auto stripped = load(file.open("hybrid"), {});
  ASSERT_TRUE(stripped.ok()) << stripped.status().message();
  EXPECT_TRUE((*stripped)->draft_blocks().empty());
}

}  // namespace
}  // namespace millrace::model

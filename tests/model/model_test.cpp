#include "model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/hyperparameters.h"
#include "model/rope.h"
#include "model/tiny_model.h"

namespace millrace::model {
namespace {

using modelfile::Value;
using residency::UnitKind;
using residency::WeightRef;
using test::TinyModel;

Status load_status(const TinyModel& tiny) { return load(tiny.open("model_test"), {}).status(); }

std::unique_ptr<Model> load_tiny(const TinyModel& tiny) {
  Expected<std::unique_ptr<Model>> model = load(tiny.open("model_test"), {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? std::move(*model) : nullptr;
}

/// Streaming reads units and parts in table order: the pass must use them in that order, each once, all of them.
void expect_used_in_pass_order(const Model& model, bool tied) {
  std::vector<WeightRef> expected;
  for (std::size_t unit = 0; unit < model.units().units().size(); ++unit)
    for (std::size_t part = 0; part < model.units().units()[unit].parts.size(); ++part)
      expected.push_back({static_cast<std::int32_t>(unit), static_cast<std::int32_t>(part)});
  if (tied) expected.push_back({0, 0});
  EXPECT_EQ(model.program().of_passes(false).weights(), expected);
}

/// Names of the steps of a pass.
std::vector<std::string> steps_of(const Model& model, bool wants_hidden = false) {
  std::vector<std::string> names;
  const exec::Program program = model.program().of_passes(wants_hidden);
  for (const exec::Step& step : program.steps) names.emplace_back(exec::name(step.kind));
  return names;
}

TEST(Load, NamesAnArchitectureItDoesNotKnowTheNearestItDoesAndWhatIsMissing) {
  TinyModel tiny = TinyModel::llama(true);
  std::map<std::string, Value> renamed;
  for (const auto& [key, value] : tiny.keys)
    renamed[key.starts_with("llama.") ? "llama9" + key.substr(5) : key] = value;
  tiny.keys = renamed;
  const auto expect = [&](std::string_view name, std::initializer_list<const char*> words) {
    tiny.keys["general.architecture"] = Value(std::string(name));
    const Status status = load_status(tiny);
    EXPECT_EQ(status.code(), Code::unsupported);
    for (const char* word : words) EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  };
  expect("llama9", {"'llama9'", "'llama'", "never compared"});
  tiny.add(1, "attn_odd.weight", {4});
  expect("llama9", {"'llama9'", "'llama'", "blk.1.attn_odd.weight"});
  expect("xylophone", {"'xylophone'", "docs/reference/models-and-file-types.md"});
}

TEST(Load, ReadsHyperparameters) {
  const auto model = load_tiny(TinyModel::qwen3moe());
  const Hyperparameters& hp = model->hyperparameters();
  EXPECT_EQ(hp.architecture, "qwen3moe");
  EXPECT_EQ(hp.name, "tiny");
  EXPECT_EQ(hp.layers, 2);
  EXPECT_EQ(hp.heads, 4);
  EXPECT_EQ(hp.kv_heads, 2);
  EXPECT_EQ(hp.head_dim, 16) << "embedding_length / head_count where key_length is absent";
  EXPECT_EQ(hp.rotary, 16);
  EXPECT_EQ(hp.vocab, 96) << "token_embd's rows where vocab_size is absent";
  EXPECT_EQ(hp.experts, 4);
  EXPECT_EQ(hp.top_k, 2);
  EXPECT_EQ(hp.expert_ff, 32);
  EXPECT_EQ(hp.context_length, 512);
}

TEST(Load, UnitsOfLlamaStandInPassOrder) {
  const auto model = load_tiny(TinyModel::llama(false));
  const auto& units = model->units().units();
  ASSERT_EQ(units.size(), 4u);
  EXPECT_EQ(units[0].kind, UnitKind::embedding);
  EXPECT_EQ(units[1].kind, UnitKind::trunk);
  EXPECT_EQ(units[2].layer, 1);
  EXPECT_EQ(units[3].kind, UnitKind::head);
  EXPECT_EQ(units[3].parts.size(), 2u);
  expect_used_in_pass_order(*model, false);
}

TEST(Load, TiedHeadHasNoUnitButItsNormHas) {
  const auto model = load_tiny(TinyModel::llama(true));
  const auto& units = model->units().units();
  ASSERT_EQ(units.size(), 4u);
  EXPECT_EQ(units[3].kind, UnitKind::trunk);
  ASSERT_EQ(units[3].parts.size(), 1u);
  EXPECT_EQ(units[3].parts[0].name, "output_norm.weight");
  expect_used_in_pass_order(*model, true);
}

TEST(Load, BiasesAreUsedWhereTheFileHasThem) {
  TinyModel tiny = TinyModel::llama(false);
  tiny.add(0, "attn_q.bias", {64});
  tiny.add(1, "attn_k.bias", {32});
  tiny.add(1, "attn_output.bias", {64});
  expect_used_in_pass_order(*load_tiny(tiny), false);
  tiny.add(1, "ffn_up.bias", {128});
  EXPECT_EQ(load_status(tiny).code(), Code::unsupported) << "a bias nobody adds would give wrong tokens";
}

TEST(Load, AHeadThatIsTheEmbeddingKeepsItsBias) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.tensors.push_back({"output.bias", DType::f32, {96}, {}});
  const auto model = load_tiny(tiny);
  const auto& last = model->units().units().back();
  ASSERT_EQ(last.parts.size(), 2u);
  EXPECT_EQ(last.parts[1].name, "output.bias");
  const auto used = model->program().of_passes(false).weights();
  EXPECT_EQ(used.back(), (WeightRef{3, 1})) << "behind the embedding as head";
}

TEST(Load, QueriesKeysAndValuesMayBeRowsOfOneTensor) {
  TinyModel tiny = TinyModel::llama(false);
  tiny.remove("blk.1.attn_q.weight");
  tiny.remove("blk.1.attn_k.weight");
  tiny.remove("blk.1.attn_v.weight");
  tiny.add(1, "attn_qkv.weight", {64, 64 + 2 * 32});
  tiny.add(1, "attn_qkv.bias", {64 + 2 * 32});
  const modelfile::Model file = tiny.open("model_test");
  const auto model = load_tiny(tiny);
  expect_used_in_pass_order(*model, false);
  const std::uint64_t weight = file.find("blk.1.attn_qkv.weight")->offset,
                      bias = file.find("blk.1.attn_qkv.bias")->offset;
  const auto& parts = model->units().units()[2].parts;  // norm, then matrix and bias of each
  const std::uint64_t offsets[] = {weight,       bias, weight + 64 * 64 * 4, bias + 64 * 4, weight + 96 * 64 * 4,
                                   bias + 96 * 4};
  for (std::size_t i = 0; i < std::size(offsets); ++i) EXPECT_EQ(parts[i + 1].offset, offsets[i]) << i;
}

TEST(Load, GateAndUpMayBeOneTensorTheGateFirst) {
  TinyModel tiny = TinyModel::llama(false);
  tiny.remove("blk.0.ffn_gate.weight");
  tiny.tensor("blk.0.ffn_up.weight").shape = {64, 256};
  const modelfile::Model file = tiny.open("model_test");
  const auto model = load_tiny(tiny);
  expect_used_in_pass_order(*model, false);
  const auto& parts = model->units().units()[1].parts;
  const std::uint64_t both = file.find("blk.0.ffn_up.weight")->offset;
  EXPECT_EQ(parts[parts.size() - 3].offset, both);
  EXPECT_EQ(parts[parts.size() - 2].offset, both + 128 * 64 * 4);

  TinyModel mixture = TinyModel::qwen3moe();
  mixture.remove("blk.0.ffn_gate_exps.weight");
  mixture.remove("blk.0.ffn_up_exps.weight");
  mixture.add(0, "ffn_gate_up_exps.weight", {64, 64, 4});
  const std::uint64_t stack = mixture.open("model_test").find("blk.0.ffn_gate_up_exps.weight")->offset;
  const auto loaded = load_tiny(mixture);
  expect_used_in_pass_order(*loaded, true);
  const auto& third = loaded->units().units()[4].parts;  // embedding, trunk, experts
  EXPECT_EQ(third[0].offset, stack + 2 * 64 * 64 * 4);
  EXPECT_EQ(third[1].offset, stack + (2 * 64 + 32) * 64 * 4);
}

TEST(Load, WhatARouterCannotBeIsRefusedByItsKey) {
  const std::pair<const char*, std::uint32_t> cannot_be[] = {
      {"expert_gating_func", 5}, {"expert_group_count", 3}, {"expert_group_used_count", 2}};
  for (const auto& [key, value] : cannot_be) {
    TinyModel tiny = TinyModel::qwen3moe();
    tiny.set(key, value);
    EXPECT_FALSE(load_status(tiny).ok()) << key;
  }
  TinyModel tiny = TinyModel::qwen3moe();
  tiny.set("expert_gating_func", 5u);
  EXPECT_NE(load_status(tiny).message().find("qwen3moe.expert_gating_func"), std::string::npos);
}

TEST(Load, ATensorThatNobodyAskedForIsRefused) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.add(1, "attn_sinks.weight", {4});
  const Status status = load_status(tiny);
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("blk.1.attn_sinks.weight"), std::string::npos) << status.message();
}

TEST(Load, ExpertsAreSlicesOfTheirTensors) {
  const TinyModel tiny = TinyModel::qwen3moe();
  const modelfile::Model file = tiny.open("model_test");
  const auto model = load_tiny(tiny);
  const auto& units = model->units().units();
  ASSERT_EQ(units.size(), 1u + 2 * (1 + 4) + 1);
  for (int layer = 0; layer < 2; ++layer)
    for (int expert = 0; expert < 4; ++expert) {
      const residency::Unit& unit = units[static_cast<std::size_t>(1 + layer * 5 + 1 + expert)];
      EXPECT_EQ(unit.kind, UnitKind::expert);
      EXPECT_EQ(unit.layer, layer);
      EXPECT_EQ(unit.expert, expert);
      ASSERT_EQ(unit.parts.size(), 3u);
      const std::string prefix = "blk." + std::to_string(layer) + ".ffn_";
      const char* names[] = {"gate_exps.weight", "up_exps.weight", "down_exps.weight"};
      for (int part = 0; part < 3; ++part) {
        const modelfile::TensorInfo* tensor = file.find(prefix + names[part]);
        ASSERT_NE(tensor, nullptr);
        EXPECT_EQ(unit.parts[static_cast<std::size_t>(part)].offset,
                  tensor->offset + static_cast<std::uint64_t>(expert) * tensor->bytes / 4);
        EXPECT_EQ(unit.parts[static_cast<std::size_t>(part)].bytes(), tensor->bytes / 4);
      }
    }
  expect_used_in_pass_order(*model, true);
}

TEST(Load, MixtureOfLlamaExpertsWorksLikeMixtral) {
  TinyModel tiny = TinyModel::llama(false);
  tiny.set("expert_count", 4u);
  tiny.set("expert_used_count", 2u);
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* name : {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"})
      tiny.remove("blk." + std::to_string(layer) + "." + name);
    tiny.add(layer, "ffn_gate_inp.weight", {64, 4});
    tiny.add(layer, "ffn_gate_exps.weight", {64, 128, 4});
    tiny.add(layer, "ffn_up_exps.weight", {64, 128, 4});
    tiny.add(layer, "ffn_down_exps.weight", {128, 64, 4});
  }
  expect_used_in_pass_order(*load_tiny(tiny), false);
}

TEST(Load, ShapeThatDisagreesIsToldWithBothShapes) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.tensor("blk.1.attn_k.weight").shape = {64, 16};
  const Status status = load_status(tiny);
  EXPECT_EQ(status.code(), Code::corrupt);
  EXPECT_EQ(status.message(), "blk.1.attn_k.weight is 64 x 16 but the hyperparameters ask for 64 x 32");
}

TEST(Load, MissingTensorIsNamed) {
  TinyModel tiny = TinyModel::qwen3moe();
  tiny.remove("blk.1.attn_q_norm.weight");
  const Status status = load_status(tiny);
  EXPECT_EQ(status.code(), Code::not_found);
  EXPECT_NE(status.message().find("blk.1.attn_q_norm.weight"), std::string::npos) << status.message();
}

TEST(Load, NormThatIsNotFloatIsRefused) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.tensor("blk.0.attn_norm.weight").dtype = DType::f16;
  EXPECT_EQ(load_status(tiny).code(), Code::unsupported);
}

TEST(Load, AbsurdHyperparametersAreErrorsThatNameTheKey) {
  const std::pair<const char*, Value> absurd[] = {
      {"block_count", Value(0u)},
      {"block_count", Value(std::uint64_t{1} << 62)},
      {"block_count", Value(std::int32_t{-3})},
      {"embedding_length", Value(0u)},
      {"embedding_length", Value(0xffffffffu)},
      {"feed_forward_length", Value(std::int64_t{-1})},
      {"attention.head_count", Value(0u)},
      {"attention.head_count_kv", Value(0u)},
      {"attention.key_length", Value(1u << 30)},
      {"attention.layer_norm_rms_epsilon", Value(-1.0f)},
      {"attention.layer_norm_rms_epsilon", Value(std::nanf(""))},
      {"rope.freq_base", Value(0.0f)},
      {"rope.dimension_count", Value(0u)},
      {"context_length", Value(0u)},
      {"context_length", Value(std::uint64_t{1} << 63)},
      {"vocab_size", Value(0u)},
      {"block_count", Value(std::string("two"))},
  };
  for (const auto& [key, value] : absurd) {
    TinyModel tiny = TinyModel::llama(true);
    tiny.keys[std::string("llama.") + key] = value;
    const Status status = load_status(tiny);
    ASSERT_FALSE(status.ok()) << key;
    EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
  }
}

TEST(Load, LatentsAreUsedInPassOrder) {
  TinyModel tiny = TinyModel::deepseek2();
  expect_used_in_pass_order(*load_tiny(tiny), false);
  tiny.keys.erase("deepseek2.attention.q_lora_rank");  // V2 Lite
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".attn_q";
    for (const char* of_two : {"_a.weight", "_a_norm.weight", "_b.weight"}) tiny.remove(prefix + of_two);
    tiny.add(prefix + ".weight", {64, 96});
  }
  expect_used_in_pass_order(*load_tiny(tiny), false);
}

TEST(Load, KeysAndValuesOfLatentsMayBeRowsOfOneTensor) {
  TinyModel tiny = TinyModel::deepseek2();
  for (const char* key : {"key_length_mla", "value_length_mla"})
    tiny.keys.erase(std::string("deepseek2.attention.") + key);
  tiny.set("attention.head_count_kv", 4u);
  tiny.set("attention.key_length", 24u);
  tiny.set("attention.value_length", 24u);
  for (int layer = 0; layer < 2; ++layer) {
    tiny.remove("blk." + std::to_string(layer) + ".attn_k_b.weight");
    tiny.remove("blk." + std::to_string(layer) + ".attn_v_b.weight");
    tiny.add(layer, "attn_kv_b.weight", {32, 4 * (16 + 24)});
  }
  const std::uint64_t heads = tiny.open("model_test").find("blk.0.attn_kv_b.weight")->offset;
  const auto model = load_tiny(tiny);
  expect_used_in_pass_order(*model, false);
  const auto& parts = model->units().units()[1].parts;  // a part a head: keys' of all heads, then values'
  const auto first = std::find_if(parts.begin(), parts.end(), [](const auto& part) { return part.rows == 16; });
  for (std::int64_t h = 0; h < 4; ++h) {
    EXPECT_EQ((first + h)->offset, heads + static_cast<std::uint64_t>(h) * 40 * 32 * 4);
    EXPECT_EQ((first + 4 + h)->offset, heads + static_cast<std::uint64_t>(h * 40 + 16) * 32 * 4);
    EXPECT_EQ((first + 4 + h)->rows, 24);
  }
}

TEST(Load, GroupsOfASoftmaxAreRankedByTheirBestExpert) {
  for (const auto& [gating, best] : {std::pair{1u, 1}, {2u, 2}}) {  // DeepSeek V2; V3
    TinyModel tiny = TinyModel::deepseek2();
    tiny.set("expert_gating_func", gating);
    tiny.set("expert_group_count", 2u);
    const auto model = load_tiny(tiny);
    for (const exec::Step& step : model->program().steps)
      EXPECT_EQ(step.experts.group_best, step.kind == exec::Step::Kind::moe ? best : exec::Experts{}.group_best);
  }
}

TEST(Load, LatentsThatCannotBeAreRefusedByTheirKey) {
  const std::pair<const char*, std::uint32_t> cannot_be[] = {
      {"attention.kv_lora_rank", 0},     {"attention.kv_lora_rank", 1 << 20}, {"attention.key_length_mla", 0},
      {"attention.value_length_mla", 0}, {"attention.q_lora_rank", 1 << 30},  {"rope.dimension_count", 24},
      {"leading_dense_block_count", 3}};
  for (const auto& [key, value] : cannot_be) {
    TinyModel tiny = TinyModel::deepseek2();
    tiny.set(key, value);
    const Status status = load_status(tiny);
    EXPECT_EQ(status.code(), Code::corrupt) << key;
    EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
  }
  TinyModel tiny = TinyModel::deepseek2();
  tiny.set("attention.temperature_scale", 0.1f);  // grows with a position divided by what?
  EXPECT_NE(load_status(tiny).message().find("original_context_length"), std::string::npos);
  tiny = TinyModel::deepseek2();
  tiny.tensor("blk.1.attn_k_b.weight").shape = {32, 16, 4};
  EXPECT_NE(load_status(tiny).message().find("blk.1.attn_k_b.weight"), std::string::npos);
}

TEST(Load, AnIndexersWeightsAreUsedInPassOrder) {
  for (const char* architecture : {"deepseek32", "glm-dsa"}) {
    const auto model = load_tiny(TinyModel::indexed(architecture));
    expect_used_in_pass_order(*model, false);
    EXPECT_EQ(model->program().layout.group_of(1).index_dim, 16);
    const exec::Rope &heads = model->program().ropes[0], &index = model->program().ropes[1];
    EXPECT_TRUE(heads.last && !heads.neox && !index.last);
    EXPECT_EQ(index.neox, std::string(architecture) == "deepseek32");
    EXPECT_EQ(index.inv_freq, heads.inv_freq);
  }
}

TEST(Load, LayersMayShareWhatOneHasChosen) {
  TinyModel tiny = TinyModel::indexed("glm-dsa", 1);
  const auto types = [&](std::vector<bool> own) {
    tiny.keys["glm-dsa.attention.indexer.types"] =
        modelfile::Value(std::make_shared<const modelfile::Array>(modelfile::Array{std::move(own)}));
  };
  types({true, false});
  const auto model = load_tiny(tiny);
  EXPECT_EQ(model->program().layout.group_of(0).index_dim, 16);
  EXPECT_EQ(model->program().layout.group_of(1).index_dim, 0);
  std::vector<exec::Act> seen;
  for (const exec::Step& step : model->program().steps)
    if (step.kind == exec::Step::Kind::attention) seen.push_back(step.b);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0], seen[1]);
  types({true, true});
  EXPECT_NE(load_status(tiny).message().find("blk.1.indexer."), std::string::npos) << load_status(tiny).message();
  types({false, true});
  EXPECT_NE(load_status(tiny).message().find("attention.indexer.types"), std::string::npos);
  LoadOptions second;
  second.stage = {1, 2};
  types({true, false});
  EXPECT_EQ(load(tiny.open("model_test"), second).status().code(), Code::unsupported);
}

TEST(Load, WhatAnIndexerCannotBeIsRefusedByName) {
  for (const char* tensor : {"attn_q_b.weight", "attn_k.weight", "k_norm.weight", "k_norm.bias", "proj.weight"}) {
    TinyModel tiny = TinyModel::indexed("deepseek32");
    const std::string name = std::string("blk.1.indexer.") + tensor;
    tiny.remove(name);
    EXPECT_EQ(load_status(tiny).code(), Code::not_found) << name;
    EXPECT_NE(load_status(tiny).message().find(name), std::string::npos) << load_status(tiny).message();
  }
  const std::pair<const char*, std::uint32_t> cannot_be[] = {
      {"attention.indexer.top_k", 0},      {"attention.indexer.top_k", 1u << 31}, {"attention.indexer.head_count", 0},
      {"attention.indexer.key_length", 4}, {"attention.indexer.key_length", 512}, {"attention.q_lora_rank", 0}};
  for (const auto& [key, value] : cannot_be) {
    TinyModel tiny = TinyModel::indexed("deepseek32");
    tiny.set(key, value);
    EXPECT_EQ(load_status(tiny).code(), Code::corrupt) << key;
    EXPECT_NE(load_status(tiny).message().find(key), std::string::npos) << load_status(tiny).message();
  }
}

TEST(Load, KvHeadsMayChooseBlocks) {
  const auto model = load_tiny(TinyModel::minimax_m3());
  expect_used_in_pass_order(*model, false);
  const exec::Program& program = model->program();
  EXPECT_EQ(program.layout.group_of(0).index_dim, 0);
  EXPECT_EQ(program.layout.group_of(1).index_dim, 16);
  std::vector<std::int64_t> seen;
  for (const exec::Step& step : program.steps) {
    if (step.kind == exec::Step::Kind::attention) seen.push_back(step.attention.selected);
    if (step.kind == exec::Step::Kind::select) {
      EXPECT_EQ(program.buffer(step.out).cols, 2 * 3);
    }
  }
  EXPECT_EQ(seen, (std::vector<std::int64_t>{0, 3 * 64}));
}

TEST(Load, WhatAnIndexerOfBlocksCannotBeIsRefusedByName) {
  for (const char* tensor : {"q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight"}) {
    TinyModel tiny = TinyModel::minimax_m3();
    const std::string name = std::string("blk.1.indexer.") + tensor;
    tiny.remove(name);
    EXPECT_EQ(load_status(tiny).code(), Code::not_found) << name;
    EXPECT_NE(load_status(tiny).message().find(name), std::string::npos) << load_status(tiny).message();
  }
  struct Wrong {
    const char* key;
    std::uint32_t value;
    Code code;
  };
  for (const auto& [key, value, code] : {Wrong{"attention.indexer.top_k", 0, Code::corrupt},
                                         {"attention.indexer.local_blocks", 4, Code::corrupt},
                                         {"attention.indexer.key_length", 6, Code::corrupt},
                                         {"attention.indexer.block_size", 0, Code::corrupt},
                                         {"attention.indexer.block_size", 32, Code::unsupported},
                                         {"attention.indexer.block_size", 192, Code::unsupported},
                                         {"attention.indexer.head_count", 4, Code::unsupported}}) {
    TinyModel tiny = TinyModel::minimax_m3();
    tiny.set(key, value);
    EXPECT_EQ(load_status(tiny).code(), code) << key << " " << value;
    EXPECT_NE(load_status(tiny).message().find(key), std::string::npos) << load_status(tiny).message();
  }
  TinyModel without = TinyModel::minimax_m3();
  without.keys.erase("minimax-m3.attention.indexer.local_blocks");
  EXPECT_NE(load_status(without).message().find("local_blocks"), std::string::npos) << load_status(without).message();
}

TEST(Load, CompressedAttentionKeepsAWindowRowsAndTheirInputs) {
  const auto model = load_tiny(TinyModel::deepseek4());
  expect_used_in_pass_order(*model, false);
  const exec::Program& program = model->program();
  ASSERT_EQ(program.layout.layers(), 3 + 3 + 2) << "rows, inputs and inputs of index keys, then rows and inputs";
  EXPECT_EQ(program.layout.group_of(0).window, 8);
  const kv::Group &chosen = program.layout.group_of(3), &all = program.layout.group_of(6);
  EXPECT_EQ(chosen.ratio, 4);
  EXPECT_EQ(chosen.index_dim, 16);
  EXPECT_EQ(program.layout.group_of(4).window, 8) << "a row's tokens, and as many before them";
  EXPECT_EQ(program.layout.group_of(4).v_dim, 2 * 2 * 32);
  EXPECT_EQ(program.layout.group_of(5).v_dim, 2 * 2 * 16);
  EXPECT_EQ(all.ratio, 128);
  EXPECT_EQ(all.index_dim, 0);
  EXPECT_EQ(program.layout.group_of(7).window, 128);
  std::vector<std::int64_t> rows, selected;
  for (const exec::Step& step : program.steps) {
    if (step.kind != exec::Step::Kind::attention) continue;
    rows.push_back(step.attention.rows);
    selected.push_back(step.attention.selected);
  }
  EXPECT_EQ(rows, (std::vector<std::int64_t>{-1, 3, 6}));
  EXPECT_EQ(selected, (std::vector<std::int64_t>{0, 7, 0}));
  EXPECT_TRUE(program.ropes[0].last && program.ropes[1].last && !program.ropes[1].neox);
}

TEST(Load, WhatCompressedAttentionCannotBeIsRefusedByName) {
  for (const char* tensor :
       {"blk.1.attn_compressor_ape.weight", "blk.2.attn_compressor_norm.weight", "blk.1.indexer_compressor_kv.weight",
        "blk.1.indexer.proj.weight", "blk.0.attn_sinks.weight", "blk.0.ffn_gate_tid2eid.weight",
        "blk.1.exp_probs_b.bias", "blk.2.hc_ffn_fn.weight", "output_hc_base.weight", "blk.0.attn_output_a.weight"}) {
    TinyModel tiny = TinyModel::deepseek4();
    tiny.remove(tensor);
    EXPECT_EQ(load_status(tiny).code(), Code::not_found) << tensor;
    EXPECT_NE(load_status(tiny).message().find(tensor), std::string::npos) << load_status(tiny).message();
  }
  const std::pair<const char*, std::uint32_t> cannot_be[] = {
      {"attention.indexer.top_k", 0},      {"attention.indexer.key_length", 8},
      {"attention.output_group_count", 3}, {"attention.sliding_window", 0},
      {"hyper_connection.count", 1},       {"hyper_connection.count", 17},
      {"attention.q_lora_rank", 0},        {"hash_layer_count", 4},
      {"attention.output_lora_rank", 0}};
  for (const auto& [key, value] : cannot_be) {
    TinyModel tiny = TinyModel::deepseek4();
    tiny.set(key, value);
    EXPECT_EQ(load_status(tiny).code(), Code::corrupt) << key;
    EXPECT_NE(load_status(tiny).message().find(key), std::string::npos) << load_status(tiny).message();
  }
  for (const std::int32_t ratio : {1, 2, 3, 96, 256}) {
    TinyModel tiny = TinyModel::deepseek4();
    tiny.set_of_layers("attention.compress_ratios", {0, 4, ratio});
    EXPECT_EQ(load_status(tiny).code(), Code::unsupported) << ratio;
    EXPECT_NE(load_status(tiny).message().find("compress_ratios is " + std::to_string(ratio) + " in layer 2"),
              std::string::npos)
        << load_status(tiny).message();
  }
  TinyModel tiny = TinyModel::deepseek4();
  tiny.set("expert_gating_func", 2u);
  EXPECT_NE(load_status(tiny).message().find("expert_gating_func"), std::string::npos);
  tiny = TinyModel::deepseek4();
  tiny.tensor("blk.0.ffn_gate_tid2eid.weight").dtype = DType::f32;
  EXPECT_NE(load_status(tiny).message().find("wants it in I32"), std::string::npos) << load_status(tiny).message();
  tiny = TinyModel::deepseek4();
  tiny.keys.erase("deepseek4.attention.compress_ratios");
  EXPECT_EQ(load_status(tiny).code(), Code::not_found);
  LoadOptions second;
  second.stage = {1, 3};
  EXPECT_EQ(load(TinyModel::deepseek4().open("model_test"), second).status().code(), Code::unsupported);
  LoadOptions guessing;
  guessing.draft_block = true;
  EXPECT_EQ(load(TinyModel::deepseek4().open("model_test"), guessing).status().code(), Code::unsupported);
}

TEST(Load, NoContextIsLongerThanATableOfPositions) {
  constexpr std::int64_t kRows = 256;  // of position_embd.weight
  const auto file = modelfile::Model::open(MILLRACE_TEST_DATA "/reference/gpt2.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  LoadOptions options;
  options.context_tokens = kRows;
  const auto fits = load(*file, options);
  ASSERT_TRUE(fits.ok()) << fits.status().message();
  EXPECT_EQ((*fits)->hyperparameters().context_length, kRows);
  options.context_tokens = kRows + 1;
  const auto longer = load(*file, options);
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.status().code(), Code::unsupported);
  EXPECT_NE(longer.status().message().find("--ctx 256"), std::string::npos) << longer.status().message();
}

TEST(Load, OneLayerOfAPeriodSeesAllAndFlagsAreNoPeriods) {
  using Windows = std::vector<std::int64_t>;
  TinyModel tiny = TinyModel::llama(true);
  Hyperparameters hp;
  hp.layers = 5;
  const auto windows = [&](SeesAll sees_all) {
    const modelfile::Model file = tiny.open("model_test");
    return read_windows(file, hp, 4, sees_all);
  };
  tiny.set("attention.sliding_window", 8u);
  EXPECT_EQ(*windows(SeesAll::last), (Windows{8, 8, 8, 0, 8})) << "by the period that the reader names";
  EXPECT_EQ(*windows(SeesAll::first), (Windows{0, 8, 8, 8, 0}));
  tiny.set("attention.sliding_window_pattern", 2u);
  EXPECT_EQ(*windows(SeesAll::last), (Windows{8, 0, 8, 0, 8}));
  tiny.set_of_layers("attention.sliding_window_pattern", {1, 0, 1, 1, 0});
  EXPECT_EQ(*windows(SeesAll::first), (Windows{8, 0, 8, 8, 0}));
  tiny.set_of_layers("attention.sliding_window_pattern", {0, 3, 3, 3, 3});
  EXPECT_EQ(windows(SeesAll::last).status().code(), Code::corrupt) << "nothing is divided by 0";
}

TEST(Load, HyperparametersThatDisagreeAreErrors) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.set("attention.head_count_kv", 3u);
  EXPECT_NE(load_status(tiny).message().find("3 KV heads"), std::string::npos);
  tiny = TinyModel::llama(true);
  tiny.set("rope.dimension_count", 32u);
  EXPECT_EQ(load_status(tiny).code(), Code::corrupt);
  tiny = TinyModel::llama(true);
  tiny.set("attention.value_length", 8u);  // as the tensors have to be, then
  EXPECT_NE(load_status(tiny).message().find("blk.0.attn_v.weight"), std::string::npos) << load_status(tiny).message();
  tiny = TinyModel::qwen3moe();
  tiny.set("expert_used_count", 5u);
  EXPECT_EQ(load_status(tiny).code(), Code::corrupt);
  tiny = TinyModel::qwen3moe();
  tiny.keys.erase("qwen3moe.expert_count");
  EXPECT_FALSE(load_status(tiny).ok());
}

TEST(Load, ThePoolingIsTheFilesAndUnknownOnesStopNobody) {
  const std::pair<std::uint32_t, Pooling> known[] = {{0, Pooling::none}, {1, Pooling::mean}, {2, Pooling::first},
                                                     {3, Pooling::last}, {4, Pooling::rank}, {9, Pooling::other}};
  EXPECT_EQ(load_tiny(TinyModel::llama(true))->hyperparameters().pooling, Pooling::none);
  for (const auto& [value, pooling] : known) {
    TinyModel tiny = TinyModel::llama(true);
    tiny.set("pooling_type", value);
    EXPECT_EQ(load_tiny(tiny)->hyperparameters().pooling, pooling) << value;
  }
}

TEST(Load, AModelThatIsNotCausalWritesNothing) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.set("attention.causal", true);
  EXPECT_TRUE(load_tiny(tiny)->program().is_causal());
  EXPECT_TRUE(check_writes(load_tiny(tiny)->hyperparameters()).ok());
  tiny.set("attention.causal", false);
  EXPECT_FALSE(load_tiny(tiny)->program().is_causal());
  EXPECT_EQ(check_writes(load_tiny(tiny)->hyperparameters()).code(), Code::unsupported);
}

TEST(Forward, LlamaLayerReadsLikeThePaper) {
  const auto model = load_tiny(TinyModel::llama(true));
  const std::vector<std::string> layer = {"norm",   "matmul", "rope", "rope",  "store kv", "attention",
                                          "matmul", "add",    "norm", "gated", "matmul",   "add"};
  std::vector<std::string> expected = {"embed"};
  for (int i = 0; i < 2; ++i) expected.insert(expected.end(), layer.begin(), layer.end());
  for (const char* last : {"rows", "norm", "logits"}) expected.push_back(last);
  EXPECT_EQ(steps_of(*model), expected);
  ASSERT_EQ(model->program().ropes.size(), 1u);
  EXPECT_FALSE(model->program().ropes[0].neox);
}

TEST(Forward, BlocksBeginWhereOnlyTheResidualStreamIsNeeded) {
  const auto model = load_tiny(TinyModel::llama(true));
  // The embedding; attention and feed-forward of two layers, six steps each; the rows that want logits.
  for (const bool wants_hidden : {false, true})
    EXPECT_EQ(model->program().of_passes(wants_hidden).blocks, (std::vector<std::size_t>{0, 1, 9, 13, 21, 25}));
}

TEST(Forward, StatesAreHandedOverBehindTheLastNormWhereTheyAreWanted) {
  for (const TinyModel& tiny : {TinyModel::llama(true), TinyModel::qwen3moe()}) {
    const auto model = load_tiny(tiny);
    const std::vector<std::string> plain = steps_of(*model), hidden = steps_of(*model, true);
    EXPECT_EQ(std::count(plain.begin(), plain.end(), "states"), 0);
    ASSERT_EQ(hidden.size(), plain.size() + 2);
    // The norm of all rows is in place: those that want logits are taken first.
    EXPECT_EQ(std::vector<std::string>(hidden.end() - 5, hidden.end()),
              (std::vector<std::string>{"rows", "norm", "states", "norm", "logits"}));
  }
}

TEST(Forward, QwenNormalisesHeadsAndRotatesHalves) {
  const auto model = load_tiny(TinyModel::qwen3moe());
  EXPECT_TRUE(model->program().ropes.at(0).neox);
  const std::vector<std::string> steps = steps_of(*model);
  EXPECT_EQ(std::count(steps.begin(), steps.end(), "heads' norm"), 4);
}

TEST(PassShape, CoversEveryBufferAndTheWidestInput) {
  const auto model = load_tiny(TinyModel::llama(true));
  exec::PassLimits limits;
  limits.max_rows = 32;
  limits.max_logit_rows = 4;
  limits.max_positions = 512;
  const exec::PassShape shape = exec::pass_shape(model->program(), model->units(), limits);
  EXPECT_EQ(shape.widest_input, 128);
  EXPECT_EQ(shape.max_rows, 32);
  EXPECT_EQ(shape.max_logit_rows, 4);
  EXPECT_EQ(shape.max_positions, 512);
  EXPECT_EQ(shape.vocab, 96);
  EXPECT_EQ(std::count_if(shape.buffers.begin(), shape.buffers.end(),
                          [](const exec::Buffer& buffer) { return buffer.rows == exec::Rows::logits; }),
            1);
}

// --- RoPE ---

std::vector<float> frequencies(const TinyModel& tiny) {
  const modelfile::Model file = tiny.open("rope_test");
  const Expected<RopeSpec> rope = read_rope(file, *read_hyperparameters(file));
  EXPECT_TRUE(rope.ok()) << rope.status().message();
  return rope.ok() ? rope->inv_freq : std::vector<float>();
}

TEST(Rope, PlainFrequenciesAreThePowersOfTheta) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.set("rope.freq_base", 500000.0f);
  const std::vector<float> inverse = frequencies(tiny);
  ASSERT_EQ(inverse.size(), 8u);
  for (int i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(inverse[static_cast<std::size_t>(i)], std::pow(500000.0, -i / 8.0));
}

TEST(Rope, LinearScalingDividesThemAll) {
  TinyModel tiny = TinyModel::llama(true);
  const std::vector<float> plain = frequencies(tiny);
  tiny.set("rope.scaling.type", std::string("linear"));
  tiny.set("rope.scaling.factor", 4.0f);
  const std::vector<float> scaled = frequencies(tiny);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_FLOAT_EQ(scaled[i], plain[i] / 4);
  TinyModel old = TinyModel::llama(true);
  old.set("rope.scale_linear", 4.0f);
  EXPECT_EQ(frequencies(old), scaled);
}

TEST(Rope, Llama3FactorsComeFromTheFile) {
  TinyModel tiny = TinyModel::llama(true);
  const std::vector<float> plain = frequencies(tiny);
  const std::vector<float> factors = {1, 1, 1, 1.5f, 2, 4, 8, 8};
  tiny.tensors.push_back({"rope_freqs.weight", DType::f32, {8}, factors});
  const std::vector<float> scaled = frequencies(tiny);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_FLOAT_EQ(scaled[i], plain[i] / factors[i]);
}

TEST(Rope, FactorsThatCannotBeAreCorrupt) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.tensors.push_back({"rope_freqs.weight", DType::f32, {8}, {1, 1, 0, 1, 1, 1, 1, 1}});
  EXPECT_EQ(load_status(tiny).code(), Code::corrupt);
  tiny = TinyModel::llama(true);
  tiny.tensors.push_back({"rope_freqs.weight", DType::f32, {9}, {}});
  EXPECT_EQ(load_status(tiny).code(), Code::corrupt);
}

TEST(Rope, TheContextAskedForChoosesLongRopesFactors) {
  TinyModel tiny = TinyModel::llama(true);
  const std::vector<float> plain = frequencies(tiny);
  const std::vector<float> factors[] = {{1, 1, 1, 1, 1, 1, 1, 2}, {1, 2, 3, 4, 5, 6, 7, 8}};  // short, long
  tiny.tensors.push_back({"rope_factors_short.weight", DType::f32, {8}, factors[0]});
  tiny.tensors.push_back({"rope_factors_long.weight", DType::f32, {8}, factors[1]});
  tiny.set("rope.scaling.type", std::string("longrope"));
  tiny.set("context_length", 512u);
  tiny.set("rope.scaling.original_context_length", 128u);
  const modelfile::Model file = tiny.open("rope_test");
  for (const std::int64_t context : {0, 128, 129, 512, 9999}) {
    const bool beyond = context > 128;
    const Expected<Hyperparameters> hp = read_hyperparameters(file, context);
    ASSERT_TRUE(hp.ok()) << hp.status().message();
    EXPECT_EQ(hp->beyond_original, beyond);
    EXPECT_EQ(hp->context_length, beyond ? 512 : 128);
    const Expected<RopeSpec> rope = read_rope(file, *hp);
    ASSERT_TRUE(rope.ok()) << rope.status().message();
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_FLOAT_EQ(rope->inv_freq[i], plain[i] / factors[beyond ? 1 : 0][i]) << context;
  }
}

TEST(Rope, YarnLeavesFastChannelsAndStretchesSlowOnes) {
  TinyModel tiny = TinyModel::llama(true);
  const std::vector<float> plain = frequencies(tiny);
  tiny.set("rope.scaling.type", std::string("yarn"));
  tiny.set("rope.scaling.factor", 4.0f);
  tiny.set("rope.scaling.original_context_length", 512u);
  // Channels that turn 32 times and once over 512 positions: 16 ln(512 / 64 pi) / (2 ln 10000) = 0.81, rounded down,
  // and 3.82, rounded up.
  const std::vector<float> scaled = frequencies(tiny);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double ramp = std::min(1.0, static_cast<double>(i) / 4);
    EXPECT_FLOAT_EQ(scaled[i], static_cast<float>(plain[i] / 4 * ramp + plain[i] * (1 - ramp))) << i;
  }
  const modelfile::Model file = tiny.open("rope_test");
  EXPECT_FLOAT_EQ(read_rope(file, *read_hyperparameters(file))->magnitude, 0.1f * std::log(4.0f) + 1);
}

TEST(Rope, YarnOfLatentsGrowsAllScoresByATenTimesLargerKey) {
  TinyModel tiny = TinyModel::deepseek2();
  tiny.set("rope.scaling.type", std::string("yarn"));
  tiny.set("rope.scaling.factor", 40.0f);
  tiny.set("rope.scaling.original_context_length", 4096u);
  tiny.set("rope.scaling.yarn_log_multiplier", 0.0707f);  // V2 Lite's mscale_all_dim of 0.707
  const auto model = load_tiny(tiny);
  const auto attention = [](const exec::Program& program) {
    for (const exec::Step& step : program.steps)
      if (step.kind == exec::Step::Kind::attention) return step.attention;
    return exec::Attention{};
  };
  const double growth = 0.1 * 0.707 * std::log(40.0) + 1;
  EXPECT_NEAR(attention(model->program()).scale, growth * growth / std::sqrt(24.0), 1e-6);
  EXPECT_EQ(model->program().ropes[0].magnitude, 1);
  tiny.keys.erase("deepseek2.rope.scaling.yarn_log_multiplier");
  const auto without = load_tiny(tiny);
  EXPECT_NEAR(attention(without->program()).scale, 1 / std::sqrt(24.0), 1e-6);
  EXPECT_NEAR(without->program().ropes[0].magnitude, 0.1 * std::log(40.0) + 1, 1e-6);
}

TEST(Rope, YarnWithoutTheContextItStretchesIsRefusedByTheKeysName) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.set("rope.scaling.type", std::string("yarn"));
  tiny.set("rope.scaling.factor", 4.0f);
  EXPECT_NE(load_status(tiny).message().find("rope.scaling.original_context_length"), std::string::npos);
}

TEST(Rope, OtherScalingsAreRefusedByName) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.set("rope.scaling.type", std::string("spiral"));
  tiny.set("rope.scaling.factor", 4.0f);
  const Status status = load_status(tiny);
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("spiral"), std::string::npos);
}

TEST(Load, WhatAFileCallsThingsStaysOnOneShortLine) {
  const std::string strange = "none\n\x1b[2J" + std::string(10'000, 'x');
  TinyModel scaling = TinyModel::llama(true), tensor = TinyModel::llama(true), architecture = TinyModel::llama(true);
  scaling.set("rope.scaling.type", strange);
  tensor.add(1, strange, {4});
  architecture.keys["general.architecture"] = modelfile::Value(strange);
  for (const TinyModel& tiny : {scaling, tensor, architecture}) {
    const std::string message = load_status(tiny).message();
    EXPECT_EQ(message.find_first_of("\n\x1b"), std::string::npos) << message;
    EXPECT_LT(message.size(), 400u);
    EXPECT_NE(message.find("none"), std::string::npos) << message;
  }
}

TEST(Plamo3, HasWindowsWithARotationOfTheirOwn) {
  const auto loaded = load(TinyModel::plamo3().open("plamo3"), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const exec::Program& program = (*loaded)->program();
  ASSERT_EQ(program.ropes.size(), 2u);
  EXPECT_LT(program.ropes[0].inv_freq[1], program.ropes[1].inv_freq[1]) << "the global layers' turn slower";
  std::vector<std::int64_t> windows;
  std::vector<int> ropes;
  for (const exec::Step& step : program.steps) {
    if (step.kind == exec::Step::Kind::attention) windows.push_back(step.attention.window);
    if (step.kind == exec::Step::Kind::rope) ropes.push_back(step.rope);
  }
  EXPECT_EQ(windows, (std::vector<std::int64_t>{8, 0}));
  EXPECT_EQ(ropes, (std::vector<int>{1, 1, 0, 0}));
  for (const char* name : {"attn_qkv.weight", "attn_q_norm.weight", "post_attention_norm", "post_ffw_norm"}) {
    TinyModel without = TinyModel::plamo3();
    without.remove(std::string("blk.1.") + name);
    const auto refused = load(without.open("plamo3"), {});
    ASSERT_FALSE(refused.ok()) << name;
    EXPECT_EQ(refused.status().code(), Code::not_found) << name;
  }
  TinyModel biased = TinyModel::plamo3();
  biased.add(0, "attn_qkv.bias", {128});
  EXPECT_EQ(load(biased.open("plamo3"), {}).status().code(), Code::unsupported);
  TinyModel other = TinyModel::plamo3();
  other.set("rope.freq_base_swa", -1.0f);
  EXPECT_EQ(load(other.open("plamo3"), {}).status().code(), Code::corrupt);
}

}  // namespace
}  // namespace millrace::model

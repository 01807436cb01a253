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

/// Notes which weights a pass uses, in order.
class RecordingOps final : public exec::Ops {
 public:
  std::vector<WeightRef> used;
  std::vector<std::string> names;
  exec::Rope rope_seen;
  bool want_hidden = false;

  std::uint64_t activation_bytes(const exec::PassShape&) const override { return 0; }
  Status prepare(const exec::PassShape&) override { return {}; }
  void begin_pass(const kv::Batch&, std::function<bool()>) override {}
  Status end_pass() override { return {}; }
  bool failed() const override { return false; }
  void embed(exec::Act, WeightRef table) override { note("embed", {table}); }
  void rms_norm(exec::Act, exec::Act, WeightRef weight, float) override { note("norm", {weight}); }
  void rms_norm_heads(exec::Act, WeightRef weight, std::int64_t, float) override { note("norm_heads", {weight}); }
  void add(exec::Act, exec::Act) override { note("add", {}); }
  void matmul(std::span<const exec::Product> products, exec::Act) override {
    names.push_back("matmul");
    for (const exec::Product& product : products)
      for (const WeightRef ref : {product.weight, product.bias})
        if (!ref.none()) used.push_back(ref);
  }
  void matmul_swiglu(exec::Act, WeightRef gate, WeightRef up, exec::Act) override { note("swiglu", {gate, up}); }
  void rope(exec::Act, std::int64_t, std::int64_t, const exec::Rope& rope) override {
    rope_seen = rope;
    note("rope", {});
  }
  void store_kv(std::int64_t, exec::Act, exec::Act) override { note("store_kv", {}); }
  void attention(exec::Act, exec::Act, std::int64_t, const exec::Attention&) override { note("attention", {}); }
  void moe(exec::Act, exec::Act, WeightRef router, std::int64_t, const exec::Experts& experts) override {
    note("moe", {router});
    for (std::int32_t expert = 0; expert < experts.count; ++expert)
      for (std::int32_t part : {experts.gate_part, experts.up_part, experts.down_part})
        used.push_back({experts.first_unit + expert, part});
  }
  void select_logit_rows(exec::Act, exec::Act) override { note("select", {}); }
  void logits(WeightRef head, exec::Act) override { note("logits", {head}); }
  exec::Logits last_logits() const override { return {}; }
  bool wants_hidden() const override { return want_hidden; }
  void hidden(exec::Act) override { note("hidden", {}); }
  Status read_hidden(std::int64_t, std::int64_t, float*) const override { return {}; }
  exec::ExecCounters counters() const override { return {}; }
  std::string describe() const override { return "recording"; }
  std::string_view numerics() const override { return "none"; }

 private:
  void note(const char* name, std::initializer_list<WeightRef> refs) {
    names.push_back(name);
    used.insert(used.end(), refs);
  }
};

/// Streaming reads units and parts in table order: the pass must use them in that order, each once, all of them.
void expect_used_in_pass_order(const Model& model, bool tied) {
  RecordingOps ops;
  model.forward(ops);
  std::vector<WeightRef> expected;
  for (std::size_t unit = 0; unit < model.units().units().size(); ++unit)
    for (std::size_t part = 0; part < model.units().units()[unit].parts.size(); ++part)
      expected.push_back({static_cast<std::int32_t>(unit), static_cast<std::int32_t>(part)});
  if (tied) expected.push_back({0, 0});
  EXPECT_EQ(ops.used, expected);
}

TEST(Load, NamesAnArchitectureItDoesNotKnowAndThoseItDoes) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.keys["general.architecture"] = Value(std::string("mamba"));
  const Status status = load_status(tiny);
  EXPECT_EQ(status.code(), Code::unsupported);
  for (const char* word : {"mamba", "llama", "qwen3moe"})
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
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

TEST(Load, HyperparametersThatDisagreeAreErrors) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.set("attention.head_count_kv", 3u);
  EXPECT_NE(load_status(tiny).message().find("3 KV heads"), std::string::npos);
  tiny = TinyModel::llama(true);
  tiny.set("rope.dimension_count", 32u);
  EXPECT_EQ(load_status(tiny).code(), Code::corrupt);
  tiny = TinyModel::llama(true);
  tiny.set("attention.value_length", 8u);
  EXPECT_EQ(load_status(tiny).code(), Code::unsupported);
  tiny = TinyModel::qwen3moe();
  tiny.set("expert_used_count", 5u);
  EXPECT_EQ(load_status(tiny).code(), Code::corrupt);
  tiny = TinyModel::qwen3moe();
  tiny.keys.erase("qwen3moe.expert_count");
  EXPECT_FALSE(load_status(tiny).ok());
}

TEST(Load, ThePoolingIsTheFilesAndUnknownOnesStopNobody) {
  const std::pair<std::uint32_t, Pooling> known[] = {{0, Pooling::none}, {1, Pooling::mean},  {2, Pooling::first},
                                                     {3, Pooling::last}, {4, Pooling::other}, {9, Pooling::other}};
  EXPECT_EQ(load_tiny(TinyModel::llama(true))->hyperparameters().pooling, Pooling::none);
  for (const auto& [value, pooling] : known) {
    TinyModel tiny = TinyModel::llama(true);
    tiny.set("pooling_type", value);
    EXPECT_EQ(load_tiny(tiny)->hyperparameters().pooling, pooling) << value;
  }
}

TEST(Load, AttentionThatIsNotCausalIsRefused) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.set("attention.causal", true);
  EXPECT_TRUE(load_status(tiny).ok());
  tiny.set("attention.causal", false);
  EXPECT_EQ(load_status(tiny).code(), Code::unsupported);
}

TEST(Forward, LlamaLayerReadsLikeThePaper) {
  const auto model = load_tiny(TinyModel::llama(true));
  RecordingOps ops;
  model->forward(ops);
  const std::vector<std::string> layer = {"norm",   "matmul", "rope", "rope",   "store_kv", "attention",
                                          "matmul", "add",    "norm", "swiglu", "matmul",   "add"};
  std::vector<std::string> expected = {"embed"};
  for (int i = 0; i < 2; ++i) expected.insert(expected.end(), layer.begin(), layer.end());
  for (const char* last : {"select", "norm", "logits"}) expected.push_back(last);
  EXPECT_EQ(ops.names, expected);
  EXPECT_FALSE(ops.rope_seen.neox);
}

TEST(Forward, StatesAreHandedOverBehindTheLastNormWhereTheyAreWanted) {
  for (const TinyModel& tiny : {TinyModel::llama(true), TinyModel::qwen3moe()}) {
    const auto model = load_tiny(tiny);
    RecordingOps plain, ops;
    ops.want_hidden = true;
    model->forward(plain);
    model->forward(ops);
    EXPECT_EQ(std::count(plain.names.begin(), plain.names.end(), "hidden"), 0);
    ASSERT_EQ(ops.names.size(), plain.names.size() + 2);
    // The norm of all rows is in place: those that want logits are taken first.
    EXPECT_EQ(std::vector<std::string>(ops.names.end() - 5, ops.names.end()),
              (std::vector<std::string>{"select", "norm", "hidden", "norm", "logits"}));
  }
}

TEST(Forward, QwenNormalisesHeadsAndRotatesHalves) {
  const auto model = load_tiny(TinyModel::qwen3moe());
  RecordingOps ops;
  model->forward(ops);
  EXPECT_TRUE(ops.rope_seen.neox);
  EXPECT_EQ(std::count(ops.names.begin(), ops.names.end(), "norm_heads"), 4);
}

TEST(PassShape, CoversEveryBufferAndTheWidestInput) {
  const auto model = load_tiny(TinyModel::llama(true));
  const exec::PassShape shape = model->pass_shape(32, 4, 512);
  EXPECT_EQ(shape.widest_input, 128);
  EXPECT_EQ(shape.max_rows, 32);
  EXPECT_EQ(shape.max_logit_rows, 4);
  EXPECT_EQ(shape.max_positions, 512);
  EXPECT_EQ(shape.vocab, 96);
  EXPECT_TRUE(shape.buffers.back().logit_rows_only);
}

// --- RoPE ---

std::vector<float> frequencies(const TinyModel& tiny) {
  const modelfile::Model file = tiny.open("rope_test");
  const auto inverse = rope_inverse_frequencies(file, *read_hyperparameters(file));
  EXPECT_TRUE(inverse.ok()) << inverse.status().message();
  return inverse.ok() ? *inverse : std::vector<float>();
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

TEST(Rope, OtherScalingsAreRefusedByName) {
  TinyModel tiny = TinyModel::llama(true);
  tiny.set("rope.scaling.type", std::string("yarn"));
  tiny.set("rope.scaling.factor", 4.0f);
  const Status status = load_status(tiny);
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("yarn"), std::string::npos);
}

}  // namespace
}  // namespace millrace::model

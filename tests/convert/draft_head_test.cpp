// A draft head's checkpoint, in both spellings of its trainers, gives the reference file of tests/data/heads; heads
// that do not fit are refused by name.
#include "convert/draft_head.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "convert/folder.h"
#include "model/tensor_rows.h"
#include "modelfile/gguf.h"
#include "modelfile/safetensors_writer.h"
#include "modelfile/verify.h"

namespace millrace::convert {
namespace {

using modelfile::Element;
using modelfile::Model;
using nlohmann::json;

std::string head_file(const std::string& name) { return std::string(MILLRACE_TEST_DATA) + "/heads/" + name + ".gguf"; }

/// A checkpoint's tensor, floats or integers.
struct Numbers {
  std::vector<std::int64_t> shape;  // in PyTorch's order
  std::vector<float> floats;
  std::vector<std::int64_t> integers;
};
using Tensors = std::map<std::string, Numbers>;

/// GGUF pairs neighbouring channels of a head, the checkpoint the two halves.
Numbers by_halves(const Numbers& given, std::int64_t head_dim) {
  Numbers numbers = given;
  const std::int64_t cols = given.shape.size() > 1 ? given.shape[1] : 1;
  for (std::int64_t row = 0; row < given.shape[0]; ++row) {
    const std::int64_t head = row / head_dim, channel = row % head_dim;
    const std::int64_t from = head * head_dim + (channel < head_dim / 2 ? 2 * channel : 2 * channel - head_dim + 1);
    std::copy_n(given.floats.begin() + from * cols, cols, numbers.floats.begin() + row * cols);
  }
  return numbers;
}

/// The tensors of a reference head, by the names of its trainers.
Tensors checkpoint_of(const Model& file, const std::string& layer) {
  static const std::map<std::string, std::string> kNames = {{"fc", "fc"},
                                                            {"enc.output_norm", "input_norm"},
                                                            {"output_norm", "norm"},
                                                            {"output", "lm_head"},
                                                            {"token_embd", "embed_tokens"},
                                                            {"blk.0.attn_norm", "@input_layernorm"},
                                                            {"blk.0.attn_norm_2", "@hidden_norm"},
                                                            {"blk.0.attn_q", "@self_attn.q_proj"},
                                                            {"blk.0.attn_k", "@self_attn.k_proj"},
                                                            {"blk.0.attn_v", "@self_attn.v_proj"},
                                                            {"blk.0.attn_output", "@self_attn.o_proj"},
                                                            {"blk.0.ffn_norm", "@post_attention_layernorm"},
                                                            {"blk.0.ffn_gate", "@mlp.gate_proj"},
                                                            {"blk.0.ffn_up", "@mlp.up_proj"},
                                                            {"blk.0.ffn_down", "@mlp.down_proj"}};
  Tensors tensors;
  for (const modelfile::TensorInfo& tensor : file.tensors()) {
    Numbers numbers;
    numbers.shape.assign(tensor.shape.rbegin(), tensor.shape.rend());
    if (tensor.dtype == DType::i64) {
      numbers.integers = *model::read_integers(file, tensor);
      for (std::size_t i = 0; i < numbers.integers.size(); ++i) numbers.integers[i] -= static_cast<std::int64_t>(i);
      tensors["d2t"] = numbers;
      numbers.integers.assign(80, 0);  // what it holds has no effect
      numbers.shape = {80};
      tensors["t2d"] = numbers;
      continue;
    }
    if (tensor.name == "rope_freqs.weight") continue;
    numbers.floats = *model::read_rows(file, tensor, 0, tensor.rows());
    const std::size_t dot = tensor.name.rfind('.');
    std::string name = kNames.at(tensor.name.substr(0, dot));
    if (name.ends_with("q_proj") || name.ends_with("k_proj")) numbers = by_halves(numbers, 64);
    if (name.starts_with('@')) name = layer + name.substr(1);
    tensors[name + tensor.name.substr(dot)] = std::move(numbers);
  }
  return tensors;
}

/// SpecForge's kind.
json config_of(const Model& file) {
  const auto number = [&](const char* key) { return *file.get_int(std::string("eagle3.") + key); };
  json config = {{"architectures", json::array({"LlamaForCausalLMEagle3"})},
                 {"model_type", "llama"},
                 {"num_hidden_layers", 1},
                 {"hidden_act", "silu"},
                 {"max_position_embeddings", number("context_length")},
                 {"hidden_size", number("embedding_length")},
                 {"intermediate_size", number("feed_forward_length")},
                 {"num_attention_heads", number("attention.head_count")},
                 {"num_key_value_heads", number("attention.head_count_kv")},
                 {"head_dim", number("attention.key_length")},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", *file.get_float("eagle3.rope.freq_base")},
                 {"vocab_size", number("vocab_size")},
                 {"draft_vocab_size", 48},
                 {"eagle_config", {{"eagle_aux_hidden_state_layer_ids", {-1, 0, 1}}, {"use_aux_hidden_state", true}}}};
  return config;
}

/// speculators' kind: the layer within, and layers counted by what they read.
json as_speculators(json layer, bool flags) {
  layer.erase("eagle_config");
  layer.erase("architectures");
  return {{"architectures", json::array({"Eagle3Speculator"})},
          {"speculators_model_type", "eagle3"},
          {"transformer_layer_config", layer},
          {"draft_vocab_size", 80},
          {"norm_before_residual", flags},
          {"norm_before_fc", flags},
          {"eagle_aux_hidden_state_layer_ids", {0, 1, 2}}};
}

void write_checkpoint(const std::string& folder, const json& config, const Tensors& tensors) {
  fs::create_directories(folder);
  std::ofstream(folder + "/config.json") << config.dump(1);
  modelfile::CheckpointWriter writer(folder, UINT64_MAX);
  for (const auto& [name, numbers] : tensors)
    ASSERT_TRUE(writer.declare(name, numbers.integers.empty() ? Element::f32 : Element::i64, numbers.shape).ok());
  ASSERT_TRUE(writer.begin().ok());
  std::size_t index = 0;
  for (const auto& [name, numbers] : tensors) {
    const auto bytes = numbers.integers.empty() ? std::as_bytes(std::span(numbers.floats))
                                                : std::as_bytes(std::span(numbers.integers));
    ASSERT_TRUE(writer.write(index++, 0, bytes).ok());
  }
  ASSERT_TRUE(writer.finish().ok());
}

class DraftHead : public testing::Test {
 protected:
  /// A head's checkpoint, changed, in a folder of its own.
  std::string written(const char* name, const std::function<void(json&, Tensors&)>& change = {}) {
    const auto file = Model::open(head_file(name));
    EXPECT_TRUE(file.ok());
    const bool wide = std::string_view(name) == "eagle3-wide";
    json config = config_of(*file);
    Tensors tensors = checkpoint_of(*file, wide ? "layers.0." : "midlayer.");
    if (wide) config = as_speculators(config, true);
    if (change) change(config, tensors);
    const std::string path = folder_.file("checkpoint-" + std::to_string(++checkpoints_));
    write_checkpoint(path, config, tensors);
    return path;
  }
  void refused(const char* name, const std::string& word, const std::function<void(json&, Tensors&)>& change) {
    SCOPED_TRACE(word);
    const std::string out = folder_.file("refused.gguf");
    const auto report = convert_draft_head(written(name, change), reference("llama3"), out, {});
    ASSERT_FALSE(report.ok());
    EXPECT_NE(report.status().message().find(word), std::string::npos) << report.status().message();
    EXPECT_FALSE(fs::exists(out) || fs::exists(out + ".partial"));
  }

  Folder folder_;
  int checkpoints_ = 0;
};

TEST_F(DraftHead, GivesTheReferencesTensorsAndKeys) {
  for (const char* name : {"eagle3", "eagle3-wide"}) {
    SCOPED_TRACE(name);
    const std::string path = written(name), out = folder_.file(std::string(name) + ".gguf");
    EXPECT_TRUE(is_draft_head(path));
    ConvertOptions options;
    options.type = modelfile::QuantizeType::f16;
    const auto report = convert_draft_head(path, reference("llama3"), out, options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->architecture, "llama");
    EXPECT_EQ(report->target_layers, (std::vector<std::int64_t>{0, 1, 2}));
    const auto before = Model::open(head_file(name)), after = Model::open(out);
    ASSERT_TRUE(before.ok() && after.ok());
    for (const modelfile::TensorInfo& tensor : before->tensors()) {
      if (tensor.name == "rope_freqs.weight") continue;  // of no scaling that a config has
      const modelfile::TensorInfo* const made = after->find(tensor.name);
      ASSERT_NE(made, nullptr) << tensor.name;
      EXPECT_EQ(made->shape, tensor.shape) << tensor.name;
      EXPECT_EQ(made->dtype, tensor.dtype) << tensor.name;
      if (tensor.dtype == DType::i64) {
        EXPECT_EQ(*model::read_integers(*after, *made), *model::read_integers(*before, tensor));
      } else {
        EXPECT_EQ(*model::read_rows(*after, *made, 0, made->rows()),
                  *model::read_rows(*before, tensor, 0, tensor.rows()))
            << tensor.name;
      }
    }
    for (const auto& [key, value] : before->metadata()) {
      if (key.starts_with("general.")) continue;
      ASSERT_TRUE(after->has(key)) << key;
      if (const auto flag = before->get_bool(key); flag.ok()) {
        EXPECT_EQ(*after->get_bool(key), *flag) << key;
      } else if (const auto list = before->get_ints(key); list.ok()) {
        EXPECT_EQ(*after->get_ints(key), *list) << key;
      } else if (const auto number = before->get_float(key); number.ok()) {
        EXPECT_EQ(static_cast<float>(*after->get_float(key)), static_cast<float>(*number)) << key;
      }
    }
    EXPECT_EQ(*after->get_strings("tokenizer.ggml.tokens"),
              *Model::open(reference("llama3"))->get_strings("tokenizer.ggml.tokens"));
  }
}

/// Without numbers of layers those of the paper; with Llama 3's scaling its factors; in blocks where they are asked
/// for.
TEST_F(DraftHead, TakesFromTheModelWhatTheCheckpointLeavesOut) {
  const std::string out = folder_.file("head.gguf");
  const auto longer = [](json& config, Tensors&) {
    config.erase("eagle_config");
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 64}};
  };
  ConvertOptions options;
  options.type = modelfile::QuantizeType::q8_0;
  const auto short_model = convert_draft_head(written("eagle3", longer), reference("llama3"), out, options);
  const std::int64_t layers = *Model::open(reference("llama3"))->get_int("llama.block_count");
  if (layers < 5) {
    ASSERT_FALSE(short_model.ok()) << "layers 2, half of them and the last but three are in no order";
    EXPECT_NE(short_model.status().message().find("not in their order"), std::string::npos)
        << short_model.status().message();
  }
  const auto with_layers = [&](json& config, Tensors& tensors) {
    longer(config, tensors);
    config["eagle_aux_hidden_state_layer_ids"] = {0, 1, 2};
  };
  const auto report = convert_draft_head(written("eagle3", with_layers), reference("llama3"), out, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  const auto file = Model::open(out);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->find("fc.weight")->dtype, DType::q8_0);
  EXPECT_EQ(file->find("output_norm.weight")->dtype, DType::f32);
  ASSERT_NE(file->find("rope_freqs.weight"), nullptr);
  EXPECT_EQ(file->find("rope_freqs.weight")->shape.front(), 32);
  EXPECT_FALSE(*file->get_bool("eagle3.norm_before_residual"));
}

TEST_F(DraftHead, WhatDoesNotFitIsRefusedByName) {
  refused("eagle3", "is for a model of 31 channels, and this one has 32", [](json&, Tensors& tensors) {
    Numbers& fc = tensors["fc.weight"];
    fc.shape[1] -= 3;
    fc.floats.resize(static_cast<std::size_t>(fc.shape[0] * fc.shape[1]));
  });
  refused("eagle3", "token 47 of the head is 40 behind itself",
          [](json&, Tensors& tensors) { tensors["d2t"].integers[47] = 40; });
  refused("eagle3", "output.weight has 48 rows, and d2t has 40", [](json&, Tensors& tensors) {
    tensors["d2t"].integers.resize(40);
    tensors["d2t"].shape = {40};
  });
  refused("eagle3", "layer 7 of a model", [](json& config, Tensors&) {
    config["eagle_aux_hidden_state_layer_ids"] = {0, 1, 7};
  });
  refused("eagle3", "num_hidden_layers", [](json& config, Tensors&) { config["num_hidden_layers"] = 2; });
  refused("eagle3", "hidden_act", [](json& config, Tensors&) { config["hidden_act"] = "gelu"; });
  refused("eagle3", "use_aux_hidden_state",
          [](json& config, Tensors&) { config["eagle_config"]["use_aux_hidden_state"] = false; });
  refused("eagle3-wide", "fc_norm", [](json& config, Tensors&) { config["fc_norm"] = true; });
  refused("eagle3", "markov.weight",
          [](json&, Tensors& tensors) { tensors["markov.weight"] = tensors["norm.weight"]; });
  refused("eagle3", "fc.weight", [](json&, Tensors& tensors) { tensors.erase("fc.weight"); });
  refused("eagle3", "blk.0.attn_norm_2.weight",
          [](json&, Tensors& tensors) { tensors.erase("midlayer.hidden_norm.weight"); });
  refused("eagle3-wide", "embeddings of 79 tokens", [](json&, Tensors& tensors) {
    Numbers& table = tensors["embed_tokens.weight"];
    table.shape[0] = 79;
    table.floats.resize(static_cast<std::size_t>(79 * table.shape[1]));
  });
}

TEST_F(DraftHead, OnlyHeadsAreTakenForHeads) {
  EXPECT_FALSE(is_draft_head(folder_.file("nowhere")));
  EXPECT_FALSE(is_draft_head(head_file("eagle3")));
  const std::vector<std::pair<std::string, json>> others = {{"architectures", json::array({"LlamaForCausalLM"})},
                                                            {"architectures", json::array({"Qwen3DSparkModel"})},
                                                            {"speculators_model_type", "dflash"}};
  for (const auto& [key, value] : others) {
    const std::string path = written("eagle3", [&, key = key, value = value](json& config, Tensors&) {
      config[key] = value;
      config.erase("draft_vocab_size");
    });
    EXPECT_FALSE(is_draft_head(path)) << value;
  }
  EXPECT_TRUE(is_draft_head(written("eagle3", [](json& config, Tensors&) {
    config["architectures"] = json::array({"LlamaForCausalLM"});  // SafeAILab's
  })));
}

}  // namespace
}  // namespace millrace::convert

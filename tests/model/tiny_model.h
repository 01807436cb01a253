// Writes small GGUF models for tests: every key and tensor can be changed or left out, to see what is said about it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "modelfile/gguf_writer.h"
#include "tensor/codec.h"

namespace millrace::test {

class TinyModel {
 public:
  struct Tensor {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    std::vector<float> values;  // random where empty
  };

  std::map<std::string, modelfile::Value> keys;
  std::vector<Tensor> tensors;

  /// 2 layers of width 64, 4 heads of 16 sharing 2 KV heads, 96 words.
  static TinyModel llama(bool tied) {
    TinyModel model = base("llama", tied);
    model.set("feed_forward_length", 128u);
    for (int layer = 0; layer < 2; ++layer) {
      model.attention(layer);
      model.feed_forward(layer);
    }
    return model;
  }

  /// The same with biases of Q, K and V.
  static TinyModel qwen2() {
    TinyModel model = base("qwen2", false);
    model.set("feed_forward_length", 128u);
    for (int layer = 0; layer < 2; ++layer) {
      model.attention(layer);
      model.add(layer, "attn_q.bias", {64});
      model.add(layer, "attn_k.bias", {32});
      model.add(layer, "attn_v.bias", {32});
      model.feed_forward(layer);
    }
    return model;
  }

  /// Q, K and V in one tensor, gate and up in another.
  static TinyModel phi3() {
    TinyModel model = base("phi3", false);
    model.set("feed_forward_length", 128u);
    for (int layer = 0; layer < 2; ++layer) {
      model.add(layer, "attn_norm.weight", {64});
      model.add(layer, "attn_qkv.weight", {64, 128});
      model.add(layer, "attn_output.weight", {64, 64});
      model.add(layer, "ffn_norm.weight", {64});
      model.add(layer, "ffn_up.weight", {64, 256});
      model.add(layer, "ffn_down.weight", {128, 64});
    }
    return model;
  }

  /// llama() with 4 experts of `width`, 2 a token, and normalised heads.
  static TinyModel qwen3moe(std::int64_t width = 32) {
    TinyModel model = base("qwen3moe", true);
    model.set("expert_count", 4u);
    model.set("expert_used_count", 2u);
    model.set("expert_feed_forward_length", static_cast<std::uint32_t>(width));
    for (int layer = 0; layer < 2; ++layer) {
      // Experts before the trunk, as files may have it: the order in the file must not matter.
      model.add(layer, "ffn_down_exps.weight", {width, 64, 4});
      model.add(layer, "ffn_gate_exps.weight", {64, width, 4});
      model.add(layer, "ffn_up_exps.weight", {64, width, 4});
      model.attention(layer);
      model.add(layer, "attn_q_norm.weight", {16});
      model.add(layer, "attn_k_norm.weight", {16});
      model.add(layer, "ffn_gate_inp.weight", {64, 4});
    }
    return model;
  }

  /// Latent attention: 4 heads of 16 + 8 channels and values of 24 from latents of 32, queries of a latent of 40. One
  /// dense layer, then one of 4 experts of `expert_width` with a shared one.
  static TinyModel deepseek2(std::int64_t expert_width = 32, const std::string& architecture = "deepseek2") {
    TinyModel model = base(architecture, false);
    model.set("attention.head_count_kv", 1u);
    model.set("attention.key_length", 40u);
    model.set("attention.value_length", 32u);
    model.set("attention.key_length_mla", 24u);
    model.set("attention.value_length_mla", 24u);
    model.set("attention.kv_lora_rank", 32u);
    model.set("attention.q_lora_rank", 40u);
    model.set("rope.dimension_count", 8u);
    model.set("feed_forward_length", 128u);
    model.set("leading_dense_block_count", 1u);
    model.set("expert_count", 4u);
    model.set("expert_used_count", 2u);
    model.set("expert_feed_forward_length", static_cast<std::uint32_t>(expert_width));
    model.set("expert_shared_count", 1u);
    for (int layer = 0; layer < 2; ++layer) {
      model.add(layer, "attn_norm.weight", {64});
      model.add(layer, "attn_q_a.weight", {64, 40});
      model.add(layer, "attn_q_a_norm.weight", {40});
      model.add(layer, "attn_q_b.weight", {40, 96});
      model.add(layer, "attn_kv_a_mqa.weight", {64, 40});
      model.add(layer, "attn_kv_a_norm.weight", {32});
      model.add(layer, "attn_k_b.weight", {16, 32, 4});
      model.add(layer, "attn_v_b.weight", {32, 24, 4});
      model.add(layer, "attn_output.weight", {96, 64});
      model.add(layer, "ffn_norm.weight", {64});
    }
    for (const char* shared : {"", "_shexp"}) {
      const int layer = *shared == 0 ? 0 : 1;
      const std::int64_t width = layer == 0 ? 128 : expert_width;
      model.add(layer, std::string("ffn_gate") + shared + ".weight", {64, width});
      model.add(layer, std::string("ffn_up") + shared + ".weight", {64, width});
      model.add(layer, std::string("ffn_down") + shared + ".weight", {width, 64});
    }
    model.add(1, "ffn_gate_inp.weight", {64, 4});
    model.add(1, "ffn_gate_exps.weight", {64, expert_width, 4});
    model.add(1, "ffn_up_exps.weight", {64, expert_width, 4});
    model.add(1, "ffn_down_exps.weight", {expert_width, 64, 4});
    return model;
  }

  /// The same with an indexer in the first `layers`: 3 heads of 16 channels that choose 7 tokens.
  static TinyModel indexed(const std::string& architecture, int layers = 2) {
    TinyModel model = deepseek2(32, architecture);
    model.set("attention.indexer.head_count", 3u);
    model.set("attention.indexer.key_length", 16u);
    model.set("attention.indexer.top_k", 7u);
    model.add(1, "exp_probs_b.bias", {4});
    for (int layer = 0; layer < layers; ++layer) {
      model.add(layer, "indexer.attn_q_b.weight", {40, 48});
      model.add(layer, "indexer.attn_k.weight", {64, 16});
      model.add(layer, "indexer.k_norm.weight", {16});
      model.add(layer, "indexer.k_norm.bias", {16});
      model.add(layer, "indexer.proj.weight", {64, 3});
    }
    return model;
  }

  /// deepseek2() with queries of one matrix, whose first layer keeps a state: 4 heads of 32 channels.
  static TinyModel kimi_linear(const std::string& architecture = "kimi-linear") {
    TinyModel model = deepseek2(32, architecture);
    model.keys.erase(architecture + ".attention.q_lora_rank");
    model.set_of_layers("attention.head_count_kv", {0, 1});
    model.set("kda.head_dim", 32u);
    model.set("ssm.conv_kernel", 4u);
    for (const char* tensor : {"attn_q_a.weight", "attn_q_a_norm.weight", "attn_q_b.weight"})
      for (const char* layer : {"blk.0.", "blk.1."}) model.remove(std::string(layer) + tensor);
    for (const char* tensor :
         {"attn_kv_a_mqa.weight", "attn_kv_a_norm.weight", "attn_k_b.weight", "attn_v_b.weight", "attn_output.weight"})
      model.remove(std::string("blk.0.") + tensor);
    model.add(1, "attn_q.weight", {64, 96});
    model.add(1, "exp_probs_b.bias", {4});
    for (const char* part : {"q", "k", "v"}) {
      model.add(0, std::string("attn_") + part + ".weight", {64, 128});
      model.add(0, std::string("ssm_conv1d_") + part + ".weight", {4, 1, 128});
    }
    for (const char* gate : {"f", "g"}) {
      model.add(0, std::string("ssm_") + gate + "_a.weight", {64, architecture == "kimi-linear" ? 32 : 128});
      if (architecture == "kimi-linear") model.add(0, std::string("ssm_") + gate + "_b.weight", {32, 128});
    }
    model.add(0, "ssm_beta.weight", {64, 4});
    model.add(0, "ssm_a", {1, 4});
    model.add(0, "ssm_dt.bias", {128});
    model.add(0, "ssm_norm.weight", {32});
    model.add(0, "attn_output.weight", {128, 64});
    return model;
  }

  /// The same with bounded decays, gates of one matrix, and heads with a gate.
  static TinyModel ling3() {
    TinyModel model = kimi_linear("bailingmoe3");
    model.set("kda.gate_lower_bound", -5.0f);
    model.add(1, "attn_gate.weight", {64, 4});
    return model;
  }

  /// A dense layer, and one of 4 experts, 2 a token, and a shared one, whose KV heads choose 3 blocks of 64 tokens
  /// each.
  static TinyModel minimax_m3() {
    TinyModel model = base("minimax-m3", false);
    for (const auto& [key, value] : {std::pair{"feed_forward_length", 128u},
                                     {"expert_count", 4u},
                                     {"expert_used_count", 2u},
                                     {"expert_feed_forward_length", 32u},
                                     {"expert_shared_count", 1u},
                                     {"expert_gating_func", 2u},
                                     {"leading_dense_block_count", 1u},
                                     {"rope.dimension_count", 8u},
                                     {"attention.indexer.head_count", 2u},
                                     {"attention.indexer.key_length", 16u},
                                     {"attention.indexer.top_k", 3u},
                                     {"attention.indexer.block_size", 64u},
                                     {"attention.indexer.local_blocks", 1u}})
      model.set(key, value);
    for (int layer = 0; layer < 2; ++layer) {
      model.attention(layer);
      model.add(layer, "attn_q_norm.weight", {16});
      model.add(layer, "attn_k_norm.weight", {16});
    }
    model.feed_forward(0);
    for (const auto& [name, shape] : {std::pair{"ffn_gate_inp.weight", std::vector<std::int64_t>{64, 4}},
                                      {"exp_probs_b.bias", {4}},
                                      {"ffn_gate_exps.weight", {64, 32, 4}},
                                      {"ffn_up_exps.weight", {64, 32, 4}},
                                      {"ffn_down_exps.weight", {32, 64, 4}},
                                      {"ffn_gate_shexp.weight", {64, 32}},
                                      {"ffn_up_shexp.weight", {64, 32}},
                                      {"ffn_down_shexp.weight", {32, 64}},
                                      {"indexer.q_proj.weight", {64, 32}},
                                      {"indexer.k_proj.weight", {64, 16}},
                                      {"indexer.q_norm.weight", {16}},
                                      {"indexer.k_norm.weight", {16}}})
      model.add(1, name, shape);
    return model;
  }

  /// Three streams; 4 heads of 32 channels, of which 16 are turned, in 2 groups, with a window of 8. The first layer
  /// has no rows and experts by the token, the second 3 index heads of 16 over rows of 4 tokens, the third rows of 128.
  static TinyModel deepseek4() {
    TinyModel model = base("deepseek4", false);
    constexpr int kLayers = 3;
    for (const auto& [key, value] : {std::pair{"block_count", 3u},
                                     {"attention.head_count_kv", 1u},
                                     {"attention.key_length", 32u},
                                     {"attention.value_length", 32u},
                                     {"rope.dimension_count", 16u},
                                     {"attention.q_lora_rank", 24u},
                                     {"attention.sliding_window", 8u},
                                     {"attention.output_group_count", 2u},
                                     {"attention.output_lora_rank", 20u},
                                     {"attention.indexer.head_count", 3u},
                                     {"attention.indexer.key_length", 16u},
                                     {"attention.indexer.top_k", 7u},
                                     {"hyper_connection.count", 3u},
                                     {"hyper_connection.sinkhorn_iterations", 5u},
                                     {"hash_layer_count", 1u},
                                     {"expert_count", 4u},
                                     {"expert_used_count", 2u},
                                     {"expert_feed_forward_length", 32u},
                                     {"expert_shared_count", 1u},
                                     {"expert_gating_func", 4u}})
      model.set(key, value);
    model.set("hyper_connection.epsilon", 1e-6f);
    model.set("swiglu_clamp_exp", 10.0f);
    model.set_of_layers("attention.compress_ratios", {0, 4, 128});
    const auto streams = [&](const std::string& stem, std::int64_t columns) {
      model.add(stem + "_fn.weight", {192, columns});
      model.add(stem + "_base.weight", {columns});
      model.add(stem + "_scale.weight", {columns == 3 ? 1 : 3});
    };
    const auto compressor = [&](int layer, const std::string& stem, std::int64_t dim, std::int64_t ratio) {
      const std::int64_t given = ratio == 4 ? 2 * dim : dim;
      model.add(layer, stem + "_kv.weight", {64, given});
      model.add(layer, stem + "_gate.weight", {64, given});
      model.add(layer, stem + "_ape.weight", {given, ratio});
      model.add(layer, stem + "_norm.weight", {dim});
    };
    for (int layer = 0; layer < kLayers; ++layer) {
      streams("blk." + std::to_string(layer) + ".hc_attn", 15);
      streams("blk." + std::to_string(layer) + ".hc_ffn", 15);
      model.add(layer, "attn_norm.weight", {64});
      model.add(layer, "attn_q_a.weight", {64, 24});
      model.add(layer, "attn_q_a_norm.weight", {24});
      model.add(layer, "attn_q_b.weight", {24, 128});
      model.add(layer, "attn_kv.weight", {64, 32});
      model.add(layer, "attn_kv_a_norm.weight", {32});
      model.add(layer, "attn_sinks.weight", {4});
      model.add(layer, "attn_output_a.weight", {64, 40});
      model.add(layer, "attn_output_b.weight", {40, 64});
      model.add(layer, "ffn_norm.weight", {64});
      model.add(layer, "ffn_gate_inp.weight", {64, 4});
      if (layer > 0) model.add(layer, "exp_probs_b.bias", {4});
      for (const char* shared : {"gate", "up"})
        model.add(layer, std::string("ffn_") + shared + "_shexp.weight", {64, 32});
      model.add(layer, "ffn_down_shexp.weight", {32, 64});
      for (const char* own : {"gate", "up"}) model.add(layer, std::string("ffn_") + own + "_exps.weight", {64, 32, 4});
      model.add(layer, "ffn_down_exps.weight", {32, 64, 4});
    }
    compressor(1, "attn_compressor", 32, 4);
    compressor(1, "indexer_compressor", 16, 4);
    model.add(1, "indexer.attn_q_b.weight", {24, 48});
    model.add(1, "indexer.proj.weight", {64, 3});
    compressor(2, "attn_compressor", 32, 128);
    model.add(0, "ffn_gate_tid2eid.weight", {2, 96});
    model.tensors.back().dtype = DType::i32;
    streams("output_hc", 3);
    return model;
  }

  /// The second layer attends; the first keeps a state: 2 heads of keys, 4 of values, all of 32 channels.
  static TinyModel qwen35(const std::string& architecture = "qwen35") {
    TinyModel model = base(architecture, true);
    model.set("feed_forward_length", 128u);
    model.set("full_attention_interval", 2u);
    model.set("ssm.conv_kernel", 4u);
    model.set("ssm.state_size", 32u);
    model.set("ssm.group_count", 2u);
    model.set("ssm.time_step_rank", 4u);
    model.set("ssm.inner_size", 128u);
    for (int layer = 0; layer < 2; ++layer) {
      model.add(layer, "attn_norm.weight", {64});
      model.add(layer, "post_attention_norm.weight", {64});
      model.feed_forward(layer);
    }
    model.add(0, "attn_qkv.weight", {64, 256});
    model.add(0, "attn_gate.weight", {64, 128});
    model.add(0, "ssm_beta.weight", {64, 4});
    model.add(0, "ssm_alpha.weight", {64, 4});
    model.add(0, "ssm_a", {4});
    model.add(0, "ssm_dt.bias", {4});
    model.add(0, "ssm_conv1d.weight", {4, 256});
    model.add(0, "ssm_norm.weight", {32});
    model.add(0, "ssm_out.weight", {128, 64});
    model.add(1, "attn_q.weight", {64, 128});
    model.add(1, "attn_k.weight", {64, 32});
    model.add(1, "attn_v.weight", {64, 32});
    model.add(1, "attn_output.weight", {64, 64});
    model.add(1, "attn_q_norm.weight", {16});
    model.add(1, "attn_k_norm.weight", {16});
    return model;
  }

  /// Three streams, mixtures of 4; the second layer attends to blocks of 4 tokens, of which 3 index heads of 16 choose
  /// 2; before it 2- and 3-grams, of 2 heads each, of a table of 60 rows of 8.
  static TinyModel qwen4exp() {
    TinyModel model = qwen35("qwen4exp");
    model.add("output.weight", {64, 96});
    model.remove("output_norm.weight");
    for (const char* layer : {"blk.0.", "blk.1."})
      for (const char* none : {"attn_norm", "post_attention_norm", "ffn_gate", "ffn_up", "ffn_down"})
        model.remove(layer + std::string(none) + ".weight");
    for (const auto& [key, value] : {std::pair{"expert_count", 4u},
                                     {"expert_used_count", 2u},
                                     {"expert_feed_forward_length", 32u},
                                     {"expert_shared_feed_forward_length", 32u},
                                     {"hyper_connection.count", 3u},
                                     {"hyper_connection.low_rank", 5u},
                                     {"attention.indexer.head_count", 3u},
                                     {"attention.indexer.key_length", 16u},
                                     {"attention.indexer.top_k", 8u},
                                     {"ple.ngram_size", 3u},
                                     {"ple.heads_per_ngram", 2u},
                                     {"ple.conv_kernel", 4u},
                                     {"ple.eos_token_id", 2u},
                                     {"embedding_length_per_layer_input", 8u}})
      model.set(key, value);
    model.set_of_layers("attention.compress_ratios", {0, 4});
    model.set_of_layers("ple.layers", {1});
    model.set_of_layers("ple.layer_multipliers", {101, 10007, 1000003});
    model.set_of_layers("ple.head_vocab_sizes", {11, 13, 17, 19});
    model.set_of_layers("ple.head_offsets", {0, 11, 24, 41});
    const auto streams = [&](const std::string& stem, bool writes) {
      model.add(stem + "_norm.weight", {192});
      model.add(stem + "_down.weight", {192, 5});
      if (writes) model.add(stem + "_inject.weight", {192, 3});
      model.add(stem + "_up.weight", {5, 192});
    };
    for (int layer = 0; layer < 2; ++layer) {
      streams("blk." + std::to_string(layer) + ".hc_attn", true);
      streams("blk." + std::to_string(layer) + ".hc_ffn", true);
      model.add(layer, "ffn_gate_inp.weight", {64, 4});
      model.add(layer, "ffn_gate_inp_shexp.weight", {64});
      for (const char* own : {"gate", "up"}) {
        model.add(layer, std::string("ffn_") + own + "_shexp.weight", {64, 32});
        model.add(layer, std::string("ffn_") + own + "_exps.weight", {64, 32, 4});
      }
      model.add(layer, "ffn_down_shexp.weight", {32, 64});
      model.add(layer, "ffn_down_exps.weight", {32, 64, 4});
    }
    streams("output_hc", false);
    model.add(1, "indexer.q_proj.weight", {64, 48});
    model.add(1, "indexer.k_proj.weight", {64, 16});
    model.add(1, "indexer.q_norm.weight", {16});
    model.add(1, "indexer.k_norm.weight", {16});
    model.add(1, "ple_key.weight", {32, 192});
    model.add(1, "ple_value.weight", {32, 64});
    for (const char* norm : {"key", "query", "conv"}) model.add(1, std::string("ple_norm_") + norm + ".weight", {192});
    model.add(1, "ple_conv1d.weight", {4, 192});
    model.add("per_layer_token_embd.weight", {8, 60});
    return model;
  }

  /// The second layer attends; the first is a convolution of 3 taps.
  static TinyModel lfm2() {
    TinyModel model = base("lfm2", true);
    model.remove("output_norm.weight");
    model.add("token_embd_norm.weight", {64});
    model.set("feed_forward_length", 128u);
    model.set("shortconv.l_cache", 3u);
    model.set_of_layers("attention.head_count_kv", {0, 2});
    model.attention(1);
    model.add(1, "attn_q_norm.weight", {16});
    model.add(1, "attn_k_norm.weight", {16});
    model.add(0, "attn_norm.weight", {64});
    model.add(0, "ffn_norm.weight", {64});
    model.add(0, "shortconv.in_proj.weight", {64, 192});
    model.add(0, "shortconv.conv.weight", {3, 64});
    model.add(0, "shortconv.out_proj.weight", {64, 64});
    for (int layer = 0; layer < 2; ++layer) {
      model.feed_forward(layer);
    }
    return model;
  }

  /// Two layers of 4 heads of 32 channels, 2 groups, states of 16.
  static TinyModel mamba2() {
    TinyModel model = base("mamba2", true);
    model.set("attention.head_count", 0u);
    model.keys.erase("mamba2.attention.head_count_kv");
    for (int layer = 0; layer < 2; ++layer) model.mamba(layer);
    return model;
  }

  /// Windows of 8 in the first layer; four norms, of which two are named without an ending.
  static TinyModel plamo3() {
    TinyModel model = base("plamo3", true);
    model.set("feed_forward_length", 128u);
    model.set("attention.sliding_window", 8u);
    model.set("attention.sliding_window_pattern", 2u);
    model.set("rope.freq_base", 1e6f);
    model.set("rope.freq_base_swa", 1e4f);
    for (int layer = 0; layer < 2; ++layer) {
      for (const char* name : {"attn_norm.weight", "ffn_norm.weight", "post_attention_norm", "post_ffw_norm"})
        model.add(layer, name, {64});
      model.add(layer, "attn_qkv.weight", {64, 128});
      model.add(layer, "attn_q_norm.weight", {16});
      model.add(layer, "attn_k_norm.weight", {16});
      model.add(layer, "attn_output.weight", {64, 64});
      model.add(layer, "ffn_up.weight", {64, 256});
      model.add(layer, "ffn_down.weight", {128, 64});
    }
    return model;
  }

  /// llama() with mamba2()'s heads beside attention.
  static TinyModel falcon_h1() {
    TinyModel model = base("falcon-h1", true);
    model.set("feed_forward_length", 128u);
    for (int layer = 0; layer < 2; ++layer) {
      model.mamba(layer);
      model.remove("blk." + std::to_string(layer) + ".attn_norm.weight");
      model.attention(layer);
      model.feed_forward(layer);
    }
    return model;
  }

  /// A layer of Mamba-2 and one of 4 experts of width 32 without a gate, a shared one beside them; then attention.
  static TinyModel nemotron() {
    TinyModel model = base("nemotron_h_moe", true);
    model.set("block_count", 3u);
    model.set_of_layers("attention.head_count_kv", {0, 0, 2});
    model.set_of_layers("feed_forward_length", {0, 32, 0});
    model.set("expert_count", 4u);
    model.set("expert_used_count", 2u);
    model.set("expert_feed_forward_length", 32u);
    model.set("expert_shared_feed_forward_length", 64u);
    model.mamba(0);
    model.add(1, "attn_norm.weight", {64});
    model.add(1, "ffn_gate_inp.weight", {64, 4});
    model.add(1, "exp_probs_b.bias", {4});
    model.add(1, "ffn_up_exps.weight", {64, 32, 4});
    model.add(1, "ffn_down_exps.weight", {32, 64, 4});
    model.add(1, "ffn_up_shexp.weight", {64, 64});
    model.add(1, "ffn_down_shexp.weight", {64, 64});
    model.attention(2);
    model.remove("blk.2.ffn_norm.weight");
    return model;
  }

  template <typename T>
  void set(const std::string& key, T value) {
    keys[architecture + "." + key] = modelfile::Value(value);
  }
  void set_of_layers(const std::string& key, std::vector<std::int32_t> values) {
    keys[architecture + "." + key] =
        modelfile::Value(std::make_shared<const modelfile::Array>(modelfile::Array{std::move(values)}));
  }
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    tensors.push_back({name, DType::f32, std::move(shape), {}});
  }
  void add(int layer, const std::string& name, std::vector<std::int64_t> shape) {
    add("blk." + std::to_string(layer) + "." + name, std::move(shape));
  }
  Tensor& tensor(const std::string& name) {
    for (Tensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    ADD_FAILURE() << "the tiny model has no " << name;
    return tensors.front();
  }
  void remove(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
  }

  /// Writes the model and opens it. `name` keeps tests of one program apart.
  modelfile::Model open(const std::string& name) const {
    const std::string path = write(name);
    Expected<modelfile::Model> opened = modelfile::Model::open(path);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? *opened : modelfile::Model();
  }

  std::string write(const std::string& name) const {
    const std::string path =
        (std::filesystem::temp_directory_path() / (name + "-" + std::to_string(::getpid()) + ".gguf")).string();
    files().paths.insert(path);
    modelfile::Writer writer(path);
    for (const auto& [key, value] : keys) expect_ok(writer.add(key, value));
    for (const Tensor& tensor : tensors) expect_ok(writer.declare(tensor.name, tensor.dtype, tensor.shape));
    expect_ok(writer.begin());
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 0.1f);
    for (const Tensor& tensor : tensors) {
      std::int64_t count = 1;
      for (const std::int64_t dim : tensor.shape) count *= dim;
      std::vector<float> values = tensor.values;
      while (static_cast<std::int64_t>(values.size()) < count) values.push_back(normal(random));
      std::vector<std::byte> bytes(static_cast<std::size_t>(row_bytes(tensor.dtype, count)));
      if (can_encode(tensor.dtype)) encode_row(tensor.dtype, values.data(), count, bytes.data());
      expect_ok(writer.write_tensor_data(bytes));
    }
    expect_ok(writer.finish());
    return path;
  }

 private:
  /// What was written goes away with the test program.
  struct Files {
    std::set<std::string> paths;
    ~Files() {
      for (const std::string& path : paths) std::filesystem::remove(path);
    }
  };
  static Files& files() {
    static Files instance;
    return instance;
  }

  static TinyModel base(const std::string& architecture, bool tied) {
    TinyModel model;
    model.architecture = architecture;
    model.keys["general.architecture"] = modelfile::Value(architecture);
    model.keys["general.name"] = modelfile::Value(std::string("tiny"));
    model.set("block_count", 2u);
    model.set("context_length", 512u);
    model.set("embedding_length", 64u);
    model.set("attention.head_count", 4u);
    model.set("attention.head_count_kv", 2u);
    model.set("attention.layer_norm_rms_epsilon", 1e-5f);
    if (!tied) model.add("output.weight", {64, 96});
    model.add("output_norm.weight", {64});
    model.add("token_embd.weight", {64, 96});
    return model;
  }
  void attention(int layer) {
    add(layer, "attn_k.weight", {64, 32});
    add(layer, "attn_norm.weight", {64});
    add(layer, "attn_output.weight", {64, 64});
    add(layer, "attn_q.weight", {64, 64});
    add(layer, "attn_v.weight", {64, 32});
    add(layer, "ffn_norm.weight", {64});
  }
  void feed_forward(int layer) {
    add(layer, "ffn_gate.weight", {64, 128});
    add(layer, "ffn_up.weight", {64, 128});
    add(layer, "ffn_down.weight", {128, 64});
  }
  void mamba(int layer) {
    set("ssm.conv_kernel", 4u);
    set("ssm.state_size", 16u);
    set("ssm.group_count", 2u);
    set("ssm.time_step_rank", 4u);
    set("ssm.inner_size", 128u);
    add(layer, "attn_norm.weight", {64});
    add(layer, "ssm_in.weight", {64, 324});
    add(layer, "ssm_conv1d.weight", {4, 192});
    add(layer, "ssm_conv1d.bias", {192});
    add(layer, "ssm_a", {1, 4});
    add(layer, "ssm_d", {1, 4});
    add(layer, "ssm_dt.bias", {4});
    add(layer, "ssm_norm.weight", {64, 2});
    add(layer, "ssm_out.weight", {128, 64});
  }
  static void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

  std::string architecture;
};

}  // namespace millrace::test

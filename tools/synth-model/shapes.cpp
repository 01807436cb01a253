#include "synth-model/shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "modelfile/quantize.h"

namespace millrace::synth {
namespace {

using modelfile::Value;

/// general.file_type of a whole file (llama.cpp's llama_ftype), by the type of its matrices.
std::uint32_t file_type(const Types& types) {
  if (types.mixture_q4_k_m) return 15;
  constexpr std::pair<DType, std::uint32_t> numbers[] = {
      {DType::f32, 0},    {DType::f16, 1},      {DType::q4_0, 2},    {DType::q4_1, 3},     {DType::q8_0, 7},
      {DType::q5_0, 8},   {DType::q5_1, 9},     {DType::q2_k, 10},   {DType::q3_k, 12},    {DType::q4_k, 14},
      {DType::q5_k, 16},  {DType::q6_k, 18},    {DType::iq4_nl, 25}, {DType::iq4_xs, 30},  {DType::bf16, 32},
      {DType::mxfp4, 38}, {DType::iq2_xxs, 19}, {DType::iq2_xs, 20}, {DType::iq3_xxs, 23}, {DType::iq1_s, 24},
      {DType::iq3_s, 26}, {DType::iq2_s, 29},   {DType::iq1_m, 31},  {DType::tq1_0, 36},   {DType::tq2_0, 37},
      {DType::nvfp4, 39}, {DType::q1_0, 40},    {DType::q2_0, 41}};
  for (const auto& [dtype, number] : numbers) {
    if (dtype == types.matrices) return number;
  }
  return 0;
}

/// Collects a model's tensors with their types.
class Builder {
 public:
  Builder(const Shape& shape, const Types& types) : shape_(shape), types_(types) {}

  void matrix(std::string name, std::int64_t cols, std::int64_t rows) {
    add(std::move(name), {cols, rows}, types_.matrices, Fill::weights);
  }
  void experts(std::string name, std::int64_t cols, std::int64_t rows) {
    const bool published = shape_.architecture == "gpt-oss" || shape_.architecture == "deepseek4";
    const DType dtype = published ? DType::mxfp4 : types_.matrices;
    add(std::move(name), {cols, rows, shape_.experts}, dtype, Fill::weights);
  }
  void heads(std::string name, std::int64_t cols, std::int64_t rows) {
    add(std::move(name), {cols, rows, shape_.heads}, types_.matrices, Fill::weights);
  }
  void head(std::string name, std::int64_t cols, std::int64_t rows) {
    add(std::move(name), {cols, rows}, six_bits_or_more(types_.matrices) ? types_.matrices : DType::q6_k,
        Fill::weights);
  }
  void plain(std::string name, std::vector<std::int64_t> shape, Fill fill) {
    list_.push_back({std::move(name), DType::f32, std::move(shape), fill});
  }
  void experts_of_tokens(std::string name) {
    list_.push_back({std::move(name), DType::i32, {shape_.top_k, shape_.vocab}, Fill::experts, shape_.experts});
  }
  std::vector<Tensor> take() { return std::move(list_); }

 private:
  static bool six_bits_or_more(DType dtype) { return info(dtype).block_bytes * 8 >= 6 * info(dtype).block_elements; }

  void add(std::string name, std::vector<std::int64_t> shape, DType dtype, Fill fill) {
    if (types_.mixture_q4_k_m && dtype != DType::mxfp4) {
      const modelfile::TensorInfo tensor{name, DType::f16, shape, 0, 0, 0};
      dtype = modelfile::choose_dtype(modelfile::QuantizeType::q4_k_m, tensor, {shape_.layers, shape_.tied});
    } else if (shape[0] % info(dtype).block_elements != 0) {
      dtype = shape[0] % info(DType::q8_0).block_elements == 0 ? DType::q8_0 : DType::f16;
    }
    list_.push_back({std::move(name), dtype, std::move(shape), fill});
  }

  const Shape& shape_;
  const Types& types_;
  std::vector<Tensor> list_;
};

constexpr std::int64_t kStateKeyHeads = 16, kStateDim = 128, kStateTaps = 4, kStateInterval = 4;

bool is_qwen4exp(const Shape& s) { return s.architecture == "qwen4exp"; }
bool is_hybrid(const Shape& s) { return s.architecture == "qwen35" || s.architecture == "qwen35moe" || is_qwen4exp(s); }

// Gemma 4's mixture: every sixth layer attends to all tokens. The others attend to a window, with heads half as wide.
constexpr std::int64_t kGemma4Interval = 6, kGemma4Window = 1024, kGemma4LocalOfGlobalKv = 4;

bool is_gemma4(const Shape& s) { return s.architecture == "gemma4"; }
bool attends_to_window(std::int64_t layer) { return (layer + 1) % kGemma4Interval != 0; }
std::int64_t gemma4_kv_heads(const Shape& s, std::int64_t layer) {
  return attends_to_window(layer) ? s.kv_heads : std::max<std::int64_t>(1, s.kv_heads / kGemma4LocalOfGlobalKv);
}

void add_delta_net(Builder& out, const Shape& s, const std::string& layer) {
  const std::int64_t values = s.state_heads * kStateDim, channels = 2 * kStateKeyHeads * kStateDim + values;
  if (!is_qwen4exp(s)) out.plain(layer + "attn_norm.weight", {s.dim}, Fill::norm);
  out.matrix(layer + "attn_qkv.weight", s.dim, channels);
  out.matrix(layer + "attn_gate.weight", s.dim, values);
  out.matrix(layer + "ssm_beta.weight", s.dim, s.state_heads);
  out.matrix(layer + "ssm_alpha.weight", s.dim, s.state_heads);
  out.plain(layer + "ssm_a", {s.state_heads}, Fill::decay);
  out.plain(layer + "ssm_dt.bias", {s.state_heads}, Fill::bias);
  out.plain(layer + "ssm_conv1d.weight", {kStateTaps, channels}, Fill::weights);
  out.plain(layer + "ssm_norm.weight", {kStateDim}, Fill::norm);
  out.matrix(layer + "ssm_out.weight", values, s.dim);
}

/// Kimi Linear's last layer attends, too.
constexpr std::int64_t kKimiLayers = 27, kLing3Interval = 6;

bool is_kimi_linear(const Shape& s) { return s.architecture == "kimi-linear"; }
bool is_ling3(const Shape& s) { return s.architecture == "bailingmoe3"; }
/// Whether layers keep a state of Kimi's delta attention, where they do not attend.
bool has_kimi_delta(const Shape& s) { return is_kimi_linear(s) || is_ling3(s); }
std::int64_t first_attending(const Shape& s) { return is_ling3(s) ? kLing3Interval : kStateInterval; }
bool kimi_attends(const Shape& s, std::int64_t layer) {
  return (layer + 1) % first_attending(s) == 0 || (is_kimi_linear(s) && layer + 1 == kKimiLayers);
}

void add_kimi_delta(Builder& out, const Shape& s, const std::string& layer) {
  const std::int64_t channels = s.state_heads * kStateDim;
  out.plain(layer + "attn_norm.weight", {s.dim}, Fill::norm);
  for (const char* part : {"q", "k", "v"}) {
    out.matrix(fmt::format("{}attn_{}.weight", layer, part), s.dim, channels);
    out.plain(fmt::format("{}ssm_conv1d_{}.weight", layer, part), {kStateTaps, 1, channels}, Fill::weights);
  }
  out.matrix(layer + "ssm_beta.weight", s.dim, s.state_heads);
  for (const char* gate : {"f", "g"}) {
    out.matrix(fmt::format("{}ssm_{}_a.weight", layer, gate), s.dim, is_ling3(s) ? channels : kStateDim);
    if (!is_ling3(s)) out.matrix(fmt::format("{}ssm_{}_b.weight", layer, gate), kStateDim, channels);
  }
  out.plain(layer + "ssm_a", {1, s.state_heads}, Fill::decay);
  out.plain(layer + "ssm_dt.bias", {channels}, Fill::bias);
  out.plain(layer + "ssm_norm.weight", {kStateDim}, Fill::norm);
  out.matrix(layer + "attn_output.weight", channels, s.dim);
}

Status add_kimi_keys(const Shape& s, modelfile::Writer& writer) {
  std::vector<std::int32_t> kv_heads;
  for (std::int64_t i = 0; i < s.layers; ++i) kv_heads.push_back(kimi_attends(s, i) ? 1 : 0);
  const auto add = [&](std::string_view key, Value value) {
    return writer.add(fmt::format("{}.{}", s.architecture, key), std::move(value));
  };
  MR_RETURN_IF_ERROR(add("attention.head_count_kv", modelfile::array_value(std::move(kv_heads))));
  MR_RETURN_IF_ERROR(add("kda.head_dim", Value(static_cast<std::uint32_t>(kStateDim))));
  if (is_ling3(s)) {
    MR_RETURN_IF_ERROR(add("kda.safe_gate", Value(true)));
    MR_RETURN_IF_ERROR(add("kda.gate_lower_bound", Value(-5.0F)));
  }
  return add("ssm.conv_kernel", Value(static_cast<std::uint32_t>(kStateTaps)));
}

/// What each layer of Nemotron 3 Nano is: M, Mamba-2; E, experts; *, attention. Of Super the numbers of each kind are
/// published, and here one period of an even order.
constexpr std::string_view kNemotronLayers = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
constexpr std::string_view kNemotronSuperLayers = "MEMEMEMEM*E";

/// Heads of Mamba-2: groups, channels of a head, keys of its state.
struct ScanShape {
  std::int64_t groups = 8, head_dim = 64, keys = kStateDim;
};
bool is_falcon_h1(const Shape& s) { return s.architecture == "falcon-h1"; }
ScanShape scan_of(const Shape& s) { return is_falcon_h1(s) ? ScanShape{2, 128, 256} : ScanShape(); }

bool is_nemotron(const Shape& s) { return s.architecture == "nemotron_h_moe"; }
char nemotron_layer(const Shape& s, std::int64_t index) {
  const std::string_view layers = s.mixing.latent > 0 ? kNemotronSuperLayers : kNemotronLayers;
  return layers[static_cast<std::size_t>(index) % layers.size()];
}
bool is_minimax_m3(const Shape& s) { return s.architecture == "minimax-m3"; }
bool indexes(const Shape& s, std::int64_t layer) {
  if (is_minimax_m3(s)) return layer >= s.mixing.leading;
  return s.index.top_k > 0 && (!s.index.shares || layer < 3 || layer % 4 == 2);
}

/// Behind a norm of the layer's.
void add_mamba2(Builder& out, const Shape& s, const std::string& layer) {
  const ScanShape scan = scan_of(s);
  const std::int64_t inner = s.state_heads * scan.head_dim, channels = inner + 2 * scan.groups * scan.keys;
  out.matrix(layer + "ssm_in.weight", s.dim, inner + channels + s.state_heads);
  out.plain(layer + "ssm_a", {1, s.state_heads}, Fill::decay);
  out.plain(layer + "ssm_dt.bias", {s.state_heads}, Fill::bias);
  out.plain(layer + "ssm_conv1d.weight", {kStateTaps, channels}, Fill::weights);
  out.plain(layer + "ssm_conv1d.bias", {channels}, Fill::bias);
  out.plain(layer + "ssm_d", {1, s.state_heads}, Fill::norm);
  out.plain(layer + "ssm_norm.weight", {inner / scan.groups, scan.groups}, Fill::norm);
  out.matrix(layer + "ssm_out.weight", inner, s.dim);
}

/// Without gates, and with a shared one twice as wide.
void add_nemotron_experts(Builder& out, const Shape& s, const std::string& layer) {
  out.plain(layer + "attn_norm.weight", {s.dim}, Fill::norm);
  out.plain(layer + "ffn_gate_inp.weight", {s.dim, s.experts}, Fill::weights);
  out.plain(layer + "exp_probs_b.bias", {s.experts}, Fill::bias);
  out.matrix(layer + "ffn_up_shexp.weight", s.dim, 2 * s.expert_ff);
  out.matrix(layer + "ffn_down_shexp.weight", 2 * s.expert_ff, s.dim);
  const std::int64_t width = s.mixing.latent > 0 ? s.mixing.latent : s.dim;
  if (s.mixing.latent > 0) {
    out.matrix(layer + "ffn_latent_down.weight", s.dim, width);
    out.matrix(layer + "ffn_latent_up.weight", width, s.dim);
  }
  out.experts(layer + "ffn_up_exps.weight", width, s.expert_ff);
  out.experts(layer + "ffn_down_exps.weight", s.expert_ff, width);
}

void add_attention(Builder& out, const Shape& s, const std::string& layer) {
  const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const bool gemma = s.architecture == "gemma3", gpt_oss = s.architecture == "gpt-oss";
  const auto projection = [&](const std::string& name, std::int64_t cols, std::int64_t rows) {
    out.matrix(layer + name + ".weight", cols, rows);
    if (gpt_oss || (s.architecture == "glm4moe" && name != "attn_output"))
      out.plain(layer + name + ".bias", {rows}, Fill::bias);
  };
  if (!is_qwen4exp(s)) out.plain(layer + "attn_norm.weight", {s.dim}, Fill::norm);
  projection("attn_q", s.dim, is_hybrid(s) ? 2 * q : q);  // with the output's gate
  projection("attn_k", s.dim, kv);
  projection("attn_v", s.dim, kv);
  projection("attn_output", q, s.dim);
  if (gemma || is_hybrid(s) || is_minimax_m3(s) || s.architecture == "qwen3" || s.architecture == "qwen3moe") {
    out.plain(layer + "attn_q_norm.weight", {s.head_dim}, Fill::norm);
    out.plain(layer + "attn_k_norm.weight", {s.head_dim}, Fill::norm);
  }
  if (gpt_oss) out.plain(layer + "attn_sinks.weight", {s.heads}, Fill::bias);
  if (gemma) out.plain(layer + "post_attention_norm.weight", {s.dim}, Fill::norm);
}

/// Of a head for each KV head, which chooses blocks; or of heads that choose together.
void add_block_indexer(Builder& out, const Shape& s, const std::string& layer) {
  const std::int64_t heads = is_qwen4exp(s) ? s.index.heads : s.kv_heads;
  out.matrix(layer + "indexer.q_proj.weight", s.dim, heads * s.index.dim);
  out.matrix(layer + "indexer.k_proj.weight", s.dim, s.index.dim);
  out.plain(layer + "indexer.q_norm.weight", {s.index.dim}, Fill::norm);
  out.plain(layer + "indexer.k_norm.weight", {s.index.dim}, Fill::norm);
}

/// The global layers have no attn_v: their values are their keys. Experts stand beside a dense feed-forward.
void add_gemma4_layer(Builder& out, const Shape& s, std::int64_t index, const std::string& layer) {
  const bool local = attends_to_window(index);
  const std::int64_t head_dim = local ? s.head_dim / 2 : s.head_dim, kv = gemma4_kv_heads(s, index) * head_dim;
  const auto norms = [&](std::initializer_list<const char*> names, std::int64_t size) {
    for (const char* name : names) out.plain(layer + name, {size}, Fill::norm);
  };
  norms({"attn_norm.weight", "post_attention_norm.weight", "ffn_norm.weight", "post_ffw_norm.weight",
         "post_ffw_norm_1.weight", "pre_ffw_norm_2.weight", "post_ffw_norm_2.weight", "ffn_gate_inp.scale"},
        s.dim);
  norms({"attn_q_norm.weight", "attn_k_norm.weight"}, head_dim);
  norms({"ffn_down_exps.scale"}, s.experts);
  norms({"layer_output_scale.weight"}, 1);
  out.matrix(layer + "attn_q.weight", s.dim, s.heads * head_dim);
  out.matrix(layer + "attn_k.weight", s.dim, kv);
  if (local) out.matrix(layer + "attn_v.weight", s.dim, kv);
  out.matrix(layer + "attn_output.weight", s.heads * head_dim, s.dim);
  out.matrix(layer + "ffn_gate.weight", s.dim, s.ff);
  out.matrix(layer + "ffn_up.weight", s.dim, s.ff);
  out.matrix(layer + "ffn_down.weight", s.ff, s.dim);
  out.plain(layer + "ffn_gate_inp.weight", {s.dim, s.experts}, Fill::weights);
  out.experts(layer + "ffn_gate_up_exps.weight", s.dim, 2 * s.expert_ff);
  out.experts(layer + "ffn_down_exps.weight", s.expert_ff, s.dim);
}

bool is_deepseek4(const Shape& s) { return s.architecture == "deepseek4"; }

/// What makes the weights of residual streams: STEM_fn, _base and _scale.
void add_streams(Builder& out, const Shape& s, const std::string& stem, std::int64_t columns) {
  out.plain(stem + "_fn.weight", {s.compressed.streams * s.dim, columns}, Fill::weights);
  out.plain(stem + "_base.weight", {columns}, Fill::bias);
  out.plain(stem + "_scale.weight", {columns == s.compressed.streams ? 1 : 3}, Fill::norm);
}

void add_compressor(Builder& out, const Shape& s, const std::string& stem, std::int64_t dim, std::int64_t ratio) {
  const std::int64_t given = ratio == 4 ? 2 * dim : dim;
  out.matrix(stem + "_kv.weight", s.dim, given);
  out.matrix(stem + "_gate.weight", s.dim, given);
  out.plain(stem + "_ape.weight", {given, ratio}, Fill::bias);
  out.plain(stem + "_norm.weight", {dim}, Fill::norm);
}

void add_deepseek4_layer(Builder& out, const Shape& s, std::int64_t index, const std::string& layer) {
  const Compressed& own = s.compressed;
  const std::int64_t q = s.heads * s.head_dim, ratio = own.ratio(index), columns = (2 + own.streams) * own.streams;
  add_streams(out, s, layer + "hc_attn", columns);
  out.plain(layer + "attn_norm.weight", {s.dim}, Fill::norm);
  out.matrix(layer + "attn_q_a.weight", s.dim, s.latent.q_rank);
  out.plain(layer + "attn_q_a_norm.weight", {s.latent.q_rank}, Fill::norm);
  out.matrix(layer + "attn_q_b.weight", s.latent.q_rank, q);
  out.matrix(layer + "attn_kv.weight", s.dim, s.head_dim);
  out.plain(layer + "attn_kv_a_norm.weight", {s.head_dim}, Fill::norm);
  out.plain(layer + "attn_sinks.weight", {s.heads}, Fill::bias);
  out.matrix(layer + "attn_output_a.weight", q / own.groups, own.groups * own.out_rank);
  out.matrix(layer + "attn_output_b.weight", own.groups * own.out_rank, s.dim);
  if (ratio > 0) add_compressor(out, s, layer + "attn_compressor", s.head_dim, ratio);
  if (ratio == 4) {
    add_compressor(out, s, layer + "indexer_compressor", s.index.dim, ratio);
    out.matrix(layer + "indexer.attn_q_b.weight", s.latent.q_rank, s.index.heads * s.index.dim);
    out.plain(layer + "indexer.proj.weight", {s.dim, s.index.heads}, Fill::weights);
  }
  add_streams(out, s, layer + "hc_ffn", columns);
  out.plain(layer + "ffn_norm.weight", {s.dim}, Fill::norm);
  out.plain(layer + "ffn_gate_inp.weight", {s.dim, s.experts}, Fill::weights);
  if (index < own.hash_layers)
    out.experts_of_tokens(layer + "ffn_gate_tid2eid.weight");
  else
    out.plain(layer + "exp_probs_b.bias", {s.experts}, Fill::bias);
  out.matrix(layer + "ffn_gate_shexp.weight", s.dim, s.expert_ff);
  out.matrix(layer + "ffn_up_shexp.weight", s.dim, s.expert_ff);
  out.matrix(layer + "ffn_down_shexp.weight", s.expert_ff, s.dim);
  out.experts(layer + "ffn_gate_exps.weight", s.dim, s.expert_ff);
  out.experts(layer + "ffn_up_exps.weight", s.dim, s.expert_ff);
  out.experts(layer + "ffn_down_exps.weight", s.expert_ff, s.dim);
}

void add_latent_attention(Builder& out, const Shape& s, std::int64_t index, const std::string& layer) {
  const Latent& latent = s.latent;
  const std::int64_t q = s.heads * s.head_dim;
  out.plain(layer + "attn_norm.weight", {s.dim}, Fill::norm);
  if (latent.q_rank > 0) {
    out.matrix(layer + "attn_q_a.weight", s.dim, latent.q_rank);
    out.plain(layer + "attn_q_a_norm.weight", {latent.q_rank}, Fill::norm);
    out.matrix(layer + "attn_q_b.weight", latent.q_rank, q);
  } else {
    out.matrix(layer + "attn_q.weight", s.dim, q);
  }
  out.matrix(layer + "attn_kv_a_mqa.weight", s.dim, latent.rank + latent.rotated);
  out.plain(layer + "attn_kv_a_norm.weight", {latent.rank}, Fill::norm);
  out.heads(layer + "attn_k_b.weight", s.head_dim - latent.rotated, latent.rank);
  out.heads(layer + "attn_v_b.weight", latent.rank, latent.v_dim);
  out.matrix(layer + "attn_output.weight", s.heads * latent.v_dim, s.dim);
  if (is_ling3(s)) out.matrix(layer + "attn_gate.weight", s.dim, s.heads);
  if (!indexes(s, index)) return;
  out.matrix(layer + "indexer.attn_q_b.weight", latent.q_rank, s.index.heads * s.index.dim);
  out.matrix(layer + "indexer.attn_k.weight", s.dim, s.index.dim);
  out.plain(layer + "indexer.k_norm.weight", {s.index.dim}, Fill::norm);
  out.plain(layer + "indexer.k_norm.bias", {s.index.dim}, Fill::bias);
  out.plain(layer + "indexer.proj.weight", {s.dim, s.index.heads}, Fill::weights);
}

void add_feed_forward(Builder& out, const Shape& s, std::int64_t index, const std::string& layer) {
  const bool gpt_oss = s.architecture == "gpt-oss", glm = s.architecture == "glm4moe";
  const bool shares = glm || s.latent.rank > 0 || is_hybrid(s) || is_minimax_m3(s);
  const char* const norm = gpt_oss || glm || is_hybrid(s) ? "post_attention_norm.weight" : "ffn_norm.weight";
  if (!is_qwen4exp(s)) out.plain(layer + norm, {s.dim}, Fill::norm);
  if (s.architecture == "gemma3") out.plain(layer + "post_ffw_norm.weight", {s.dim}, Fill::norm);
  const Mixing mixing = is_hybrid(s) ? Mixing{0, 1, 1, 1, false, 1} : s.mixing;
  if (s.experts == 0 || (shares && index < mixing.leading)) {
    out.matrix(layer + "ffn_gate.weight", s.dim, s.ff);
    out.matrix(layer + "ffn_up.weight", s.dim, s.ff);
    out.matrix(layer + "ffn_down.weight", s.ff, s.dim);
    return;
  }
  const auto biases = [&](const char* name, std::vector<std::int64_t> shape) {
    if (gpt_oss) out.plain(layer + name + ".bias", std::move(shape), Fill::bias);
  };
  out.plain(layer + "ffn_gate_inp.weight", {s.dim, s.experts}, Fill::weights);
  biases("ffn_gate_inp", {s.experts});
  if (shares) {
    const std::int64_t shared_ff = mixing.shared * s.expert_ff;
    if (mixing.sigmoid) out.plain(layer + "exp_probs_b.bias", {s.experts}, Fill::bias);
    if (is_hybrid(s)) out.plain(layer + "ffn_gate_inp_shexp.weight", {s.dim}, Fill::weights);
    out.matrix(layer + "ffn_gate_shexp.weight", s.dim, shared_ff);
    out.matrix(layer + "ffn_up_shexp.weight", s.dim, shared_ff);
    out.matrix(layer + "ffn_down_shexp.weight", shared_ff, s.dim);
  }
  if (s.architecture == "mistral4") {
    out.experts(layer + "ffn_gate_up_exps.weight", s.dim, 2 * s.expert_ff);
    out.experts(layer + "ffn_down_exps.weight", s.expert_ff, s.dim);
    return;
  }
  out.experts(layer + "ffn_gate_exps.weight", s.dim, s.expert_ff);
  biases("ffn_gate_exps", {s.expert_ff, s.experts});
  out.experts(layer + "ffn_up_exps.weight", s.dim, s.expert_ff);
  biases("ffn_up_exps", {s.expert_ff, s.experts});
  out.experts(layer + "ffn_down_exps.weight", s.expert_ff, s.dim);
  biases("ffn_down_exps", {s.dim, s.experts});
}

// Qwen3.8-Flash-Next: n-grams of 2 and of 3 tokens, 8 heads each, before the second layer.
constexpr std::int64_t kNgramLayer = 1, kNgramSize = 3, kNgramHeads = 8, kNgramTaps = 4;
constexpr std::int64_t kNgramRows = (kNgramSize - 1) * kNgramHeads;  // of a token

/// What gates residual streams: STEM_norm, _down, _up and, where something is written, _inject.
void add_gated_streams(Builder& out, const Shape& s, const std::string& stem, bool writes) {
  const std::int64_t all = s.engram.streams * s.dim;
  out.plain(stem + "_norm.weight", {all}, Fill::norm);
  out.matrix(stem + "_down.weight", all, s.engram.rank);
  if (writes) out.matrix(stem + "_inject.weight", all, s.engram.streams);
  out.matrix(stem + "_up.weight", s.engram.rank, all);
}

/// What a layer of qwen4exp has beside a hybrid's.
void add_qwen4exp_parts(Builder& out, const Shape& s, std::int64_t index, const std::string& layer) {
  const std::int64_t all = s.engram.streams * s.dim, width = kNgramRows * s.engram.channels;
  if (index == kNgramLayer) {
    out.matrix("per_layer_token_embd.weight", s.engram.channels, kNgramRows * s.engram.head_rows);
    out.matrix(layer + "ple_key.weight", width, all);
    out.matrix(layer + "ple_value.weight", width, s.dim);
    for (const char* norm : {"key", "query", "conv"})
      out.plain(fmt::format("{}ple_norm_{}.weight", layer, norm), {all}, Fill::norm);
    out.plain(layer + "ple_conv1d.weight", {kNgramTaps, all}, Fill::weights);
  }
  add_gated_streams(out, s, layer + "hc_attn", true);
  add_gated_streams(out, s, layer + "hc_ffn", true);
}

Status add_qwen4exp_keys(const Shape& s, modelfile::Writer& writer) {
  const auto add = [&](std::string_view key, Value value) {
    return writer.add(fmt::format("{}.{}", s.architecture, key), std::move(value));
  };
  std::vector<std::int32_t> blocks;
  for (std::int64_t i = 0; i < s.layers; ++i)
    blocks.push_back((i + 1) % kStateInterval == 0 ? static_cast<std::int32_t>(s.engram.block) : 0);
  std::vector<std::uint64_t> sizes(kNgramRows, static_cast<std::uint64_t>(s.engram.head_rows)), offsets;
  for (std::int64_t head = 0; head < kNgramRows; ++head)
    offsets.push_back(static_cast<std::uint64_t>(head * s.engram.head_rows));
  MR_RETURN_IF_ERROR(add("attention.compress_ratios", modelfile::array_value(std::move(blocks))));
  MR_RETURN_IF_ERROR(add("ple.layers", modelfile::array_value(std::vector<std::int32_t>{kNgramLayer})));
  MR_RETURN_IF_ERROR(add("ple.layer_multipliers", modelfile::array_value(std::vector<std::uint64_t>{
                                                      23703573157769, 20109073645365, 8052911324071})));
  MR_RETURN_IF_ERROR(add("ple.head_vocab_sizes", modelfile::array_value(std::move(sizes))));
  MR_RETURN_IF_ERROR(add("ple.head_offsets", modelfile::array_value(std::move(offsets))));
  for (const auto& [key, value] : {std::pair{"hyper_connection.count", s.engram.streams},
                                   {"hyper_connection.low_rank", s.engram.rank},
                                   {"ple.ngram_size", kNgramSize},
                                   {"ple.heads_per_ngram", kNgramHeads},
                                   {"ple.conv_kernel", kNgramTaps},
                                   {"ple.eos_token_id", std::int64_t{2}},
                                   {"embedding_length_per_layer_input", s.engram.channels}})
    MR_RETURN_IF_ERROR(add(key, Value(static_cast<std::uint32_t>(value))));
  return {};
}

void add_nemotron_layer(Builder& out, const Shape& s, std::int64_t index, const std::string& layer) {
  switch (nemotron_layer(s, index)) {
    case 'M':
      out.plain(layer + "attn_norm.weight", {s.dim}, Fill::norm);
      return add_mamba2(out, s, layer);
    case 'E':
      return add_nemotron_experts(out, s, layer);
    default:
      return add_attention(out, s, layer);
  }
}

Status add_scan_keys(const Shape& s, modelfile::Writer& writer) {
  const ScanShape scan = scan_of(s);
  for (const auto& [key, value] : {std::pair{"conv_kernel", kStateTaps},
                                   {"state_size", scan.keys},
                                   {"group_count", scan.groups},
                                   {"time_step_rank", s.state_heads},
                                   {"inner_size", s.state_heads * scan.head_dim}})
    MR_RETURN_IF_ERROR(
        writer.add(fmt::format("{}.ssm.{}", s.architecture, key), Value(static_cast<std::uint32_t>(value))));
  return {};
}

/// What tells a reader what each layer is.
Status add_nemotron_keys(const Shape& s, modelfile::Writer& writer) {
  std::vector<std::int32_t> kv_heads, ff_dims;
  for (std::int64_t i = 0; i < s.layers; ++i) {
    kv_heads.push_back(nemotron_layer(s, i) == '*' ? static_cast<std::int32_t>(s.kv_heads) : 0);
    ff_dims.push_back(nemotron_layer(s, i) == 'E' ? static_cast<std::int32_t>(s.expert_ff) : 0);
  }
  const auto add = [&](std::string_view key, Value value) {
    return writer.add(fmt::format("{}.{}", s.architecture, key), std::move(value));
  };
  const auto array = [](std::vector<std::int32_t> values) {
    return Value(std::make_shared<const modelfile::Array>(modelfile::Array{std::move(values)}));
  };
  MR_RETURN_IF_ERROR(add("attention.head_count_kv", array(std::move(kv_heads))));
  MR_RETURN_IF_ERROR(add("feed_forward_length", array(std::move(ff_dims))));
  MR_RETURN_IF_ERROR(add("rope.scaling.finetuned", Value(false)));
  MR_RETURN_IF_ERROR(add("expert_weights_norm", Value(s.mixing.sigmoid)));
  MR_RETURN_IF_ERROR(add("expert_weights_scale", Value(static_cast<float>(s.mixing.scale))));
  if (s.mixing.latent > 0)
    MR_RETURN_IF_ERROR(add("moe_latent_size", Value(static_cast<std::uint32_t>(s.mixing.latent))));
  for (const auto& [key, value] :
       {std::pair{"expert_shared_count", std::int64_t{1}}, {"expert_shared_feed_forward_length", 2 * s.expert_ff}})
    MR_RETURN_IF_ERROR(add(key, Value(static_cast<std::uint32_t>(value))));
  return {};
}

Status add_deepseek4_keys(const Shape& s, modelfile::Writer& writer) {
  const Compressed& own = s.compressed;
  std::vector<std::int32_t> ratios;
  for (std::int64_t i = 0; i < s.layers; ++i) ratios.push_back(static_cast<std::int32_t>(own.ratio(i)));
  const std::vector<float> limits(static_cast<std::size_t>(s.layers), 10.0F);
  const auto add = [&](std::string_view key, Value value) {
    return writer.add(fmt::format("{}.{}", s.architecture, key), std::move(value));
  };
  MR_RETURN_IF_ERROR(add("attention.compress_ratios", modelfile::array_value(std::move(ratios))));
  MR_RETURN_IF_ERROR(add("swiglu_clamp_exp", modelfile::array_value(limits)));
  MR_RETURN_IF_ERROR(add("swiglu_clamp_shexp", modelfile::array_value(limits)));
  MR_RETURN_IF_ERROR(add("attention.compress_rope_freq_base", Value(160000.0F)));
  MR_RETURN_IF_ERROR(add("rope.scaling.type", Value(std::string("yarn"))));
  MR_RETURN_IF_ERROR(add("rope.scaling.factor", Value(16.0F)));
  MR_RETURN_IF_ERROR(add("hyper_connection.epsilon", Value(1e-6F)));
  MR_RETURN_IF_ERROR(add("expert_weights_norm", Value(true)));
  MR_RETURN_IF_ERROR(add("expert_weights_scale", Value(static_cast<float>(s.mixing.scale))));
  for (const auto& [key, value] : {std::pair{"attention.q_lora_rank", s.latent.q_rank},
                                   {"attention.sliding_window", own.window},
                                   {"attention.output_group_count", own.groups},
                                   {"attention.output_lora_rank", own.out_rank},
                                   {"rope.scaling.original_context_length", std::int64_t{65536}},
                                   {"hyper_connection.count", own.streams},
                                   {"hyper_connection.sinkhorn_iterations", std::int64_t{20}},
                                   {"hash_layer_count", std::min(own.hash_layers, s.layers)},
                                   {"expert_shared_count", s.mixing.shared},
                                   {"expert_gating_func", std::int64_t{4}},
                                   {"embedding_length_out", own.streams * s.dim}})
    MR_RETURN_IF_ERROR(add(key, Value(static_cast<std::uint32_t>(value))));
  return {};
}

/// The window and which layers have one; the sizes of those layers' heads.
Status add_gemma4_keys(const Shape& s, modelfile::Writer& writer) {
  std::vector<std::int32_t> kv_heads;
  std::vector<bool> local;
  for (std::int64_t i = 0; i < s.layers; ++i) {
    kv_heads.push_back(static_cast<std::int32_t>(gemma4_kv_heads(s, i)));
    local.push_back(attends_to_window(i));
  }
  MR_RETURN_IF_ERROR(writer.add("gemma4.attention.head_count_kv", modelfile::array_value(std::move(kv_heads))));
  MR_RETURN_IF_ERROR(writer.add("gemma4.attention.sliding_window_pattern", modelfile::array_value(std::move(local))));
  MR_RETURN_IF_ERROR(writer.add("gemma4.rope.freq_base_swa", Value(1e4F)));
  MR_RETURN_IF_ERROR(writer.add("gemma4.final_logit_softcapping", Value(30.0F)));
  for (const auto& [key, value] : {std::pair{"attention.sliding_window", kGemma4Window},
                                   {"attention.key_length_swa", s.head_dim / 2},
                                   {"attention.value_length_swa", s.head_dim / 2},
                                   {"rope.dimension_count_swa", s.head_dim / 2},
                                   {"embedding_length_per_layer_input", std::int64_t{0}}})  // llama.cpp asks for it
    MR_RETURN_IF_ERROR(writer.add(fmt::format("gemma4.{}", key), Value(static_cast<std::uint32_t>(value))));
  return {};
}

}  // namespace

Expected<Types> types_from_name(std::string_view name) {
  if (name == "Q4_K_M" || name == "q4_k_m") return Types{DType::q4_k, true};
  MR_ASSIGN_OR_RETURN(const DType dtype, dtype_from_name(name));
  if (!info(dtype).computable) return error(Code::unsupported, "{} is no type for weights", info(dtype).name);
  return Types{dtype, false};
}

Status check(const Shape& s) {
  const auto bad = [](std::string_view why) { return error(Code::invalid_argument, "{}", why); };
  constexpr std::string_view kKnown[] = {"llama",      "qwen3",       "qwen3moe",   "qwen35",         "qwen35moe",
                                         "gemma3",     "gemma4",      "gpt-oss",    "glm4moe",        "deepseek2",
                                         "deepseek32", "glm-dsa",     "mistral4",   "nemotron_h_moe", "kimi-linear",
                                         "deepseek4",  "bailingmoe3", "minimax-m3", "qwen4exp",       "falcon-h1"};
  constexpr std::string_view kLatents[] = {"deepseek2", "deepseek32",  "glm-dsa",
                                           "mistral4",  "kimi-linear", "bailingmoe3"};
  constexpr std::string_view kMixtures[] = {"qwen3moe",    "gemma4",     "qwen35moe",   "gpt-oss",    "glm4moe",
                                            "deepseek2",   "deepseek32", "glm-dsa",     "mistral4",   "nemotron_h_moe",
                                            "kimi-linear", "deepseek4",  "bailingmoe3", "minimax-m3", "qwen4exp"};
  if (std::find(std::begin(kKnown), std::end(kKnown), s.architecture) == std::end(kKnown))
    return error(Code::invalid_argument, "--arch {} is none of {}", s.architecture, fmt::join(kKnown, ", "));
  for (const auto& [flag, value] :
       {std::pair{"--layers", s.layers},
        {"--dim", s.dim},
        {"--ff", s.experts > 0 && (is_hybrid(s) || is_nemotron(s)) ? 1 : s.ff},  // experts alone
        {"--heads", s.heads},
        {"--kv-heads", s.kv_heads},
        {"--head-dim", s.head_dim},
        {"--ctx", s.context}}) {
    if (value < 1 || value > 1 << 20) return error(Code::invalid_argument, "{} {} is out of range", flag, value);
  }
  if (s.heads % s.kv_heads != 0) return bad("--heads must be a multiple of --kv-heads");
  if (std::find(std::begin(kLatents), std::end(kLatents), s.architecture) != std::end(kLatents) && s.latent.rank == 0)
    return error(Code::invalid_argument, "{} has presets alone: see --preset", s.architecture);
  if ((is_deepseek4(s) && s.compressed.window == 0) || (is_minimax_m3(s) && s.index.block == 0) ||
      (is_qwen4exp(s) && s.engram.streams == 0))
    return error(Code::invalid_argument, "{} has presets alone: see --preset", s.architecture);
  if (s.head_dim % 2 != 0) return bad("--head-dim must be even");
  if (is_gemma4(s) && s.head_dim % 4 != 0) return bad("gemma4's --head-dim must be a multiple of 4");
  if (s.vocab < 300 || s.vocab > 1 << 21) return bad("--vocab must lie between 300 and 2097152");
  if (s.experts == 0 && std::find(std::begin(kMixtures), std::end(kMixtures), s.architecture) != std::end(kMixtures))
    return bad("this architecture needs --experts, --top-k, --expert-ff");
  if (s.experts < 0 || s.experts > 4096) return bad("--experts must lie between 0 and 4096");
  if (s.experts > 0 && (s.top_k < 1 || s.top_k > s.experts)) return bad("--top-k must lie between 1 and --experts");
  if (s.experts > 0 && (s.expert_ff < 1 || s.expert_ff > 1 << 20)) return bad("--expert-ff is out of range");
  if (is_hybrid(s) && (s.state_heads < kStateKeyHeads || s.state_heads % kStateKeyHeads != 0 || s.state_heads > 4096))
    return bad("--state-heads must be a multiple of 16");
  const std::int64_t groups = scan_of(s).groups;
  if ((is_nemotron(s) || is_falcon_h1(s)) &&
      (s.state_heads < groups || s.state_heads % groups != 0 || s.state_heads > 4096))
    return error(Code::invalid_argument, "--state-heads must be a multiple of {}", groups);
  if (is_qwen4exp(s) && (s.layers < kStateInterval || s.engram.head_rows < 1 || s.engram.head_rows > 1 << 26))
    return bad("qwen4exp has 4 layers or more, and --ngram-rows between 1 and 67108864");
  if (is_nemotron(s) && s.layers < 6) return bad("the first layer that attends is the sixth: --layers 6 or more");
  if (is_nemotron(s) && s.mixing.latent > 0 && s.layers < 10)
    return bad("the first layer that attends is the tenth: --layers 10 or more");
  if (has_kimi_delta(s) && s.layers < first_attending(s))
    return error(Code::invalid_argument, "the first layer that attends is number {0}: --layers {0} or more",
                 first_attending(s));
  if (has_kimi_delta(s) && s.state_heads != s.heads) return bad("--state-heads must be --heads in this architecture");
  if (s.architecture == "llama" && s.experts > 0 && s.expert_ff != s.ff) {
    return bad("llama's experts are --ff wide; leave --expert-ff out");
  }
  return {};
}

std::vector<Tensor> tensors(const Shape& shape, const Types& types) {
  Builder out(shape, types);
  if (shape.tied)
    out.head("token_embd.weight", shape.dim, shape.vocab);
  else
    out.matrix("token_embd.weight", shape.dim, shape.vocab);
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const std::string layer = fmt::format("blk.{}.", i);
    if (is_nemotron(shape)) {
      add_nemotron_layer(out, shape, i, layer);
      continue;
    }
    if (is_gemma4(shape)) {
      add_gemma4_layer(out, shape, i, layer);
      continue;
    }
    if (is_deepseek4(shape)) {
      add_deepseek4_layer(out, shape, i, layer);
      continue;
    }
    if (is_qwen4exp(shape)) add_qwen4exp_parts(out, shape, i, layer);
    if (is_hybrid(shape) && (i + 1) % kStateInterval != 0)
      add_delta_net(out, shape, layer);
    else if (has_kimi_delta(shape) && !kimi_attends(shape, i))
      add_kimi_delta(out, shape, layer);
    else if (shape.latent.rank > 0)
      add_latent_attention(out, shape, i, layer);
    else
      add_attention(out, shape, layer);
    if (is_falcon_h1(shape)) add_mamba2(out, shape, layer);
    const bool attends = !is_qwen4exp(shape) || (i + 1) % kStateInterval == 0;
    if ((is_minimax_m3(shape) || is_qwen4exp(shape)) && indexes(shape, i) && attends)
      add_block_indexer(out, shape, layer);
    add_feed_forward(out, shape, i, layer);
  }
  if (is_deepseek4(shape)) add_streams(out, shape, "output_hc", shape.compressed.streams);
  if (is_qwen4exp(shape))
    add_gated_streams(out, shape, "output_hc", false);
  else
    out.plain("output_norm.weight", {shape.dim}, Fill::norm);
  if (!shape.tied) out.head("output.weight", shape.dim, shape.vocab);
  return out.take();
}

Status add_hyperparameters(const Shape& s, const Types& types, modelfile::Writer& writer) {
  const auto add_text = [&](const char* key, std::string text) { return writer.add(key, Value(std::move(text))); };
  MR_RETURN_IF_ERROR(add_text("general.architecture", s.architecture));
  MR_RETURN_IF_ERROR(add_text("general.type", "model"));
  MR_RETURN_IF_ERROR(add_text("general.name", "synth " + s.name));
  MR_RETURN_IF_ERROR(add_text("general.description", "random weights of a real shape, for benchmarks"));
  MR_RETURN_IF_ERROR(writer.add("general.quantization_version", Value(std::uint32_t{2})));
  MR_RETURN_IF_ERROR(writer.add("general.file_type", Value(file_type(types))));
  const auto number = [&](std::string_view key, std::int64_t value) {
    return writer.add(fmt::format("{}.{}", s.architecture, key), Value(static_cast<std::uint32_t>(value)));
  };
  const auto real = [&](std::string_view key, double value) {
    return writer.add(fmt::format("{}.{}", s.architecture, key), Value(static_cast<float>(value)));
  };
  MR_RETURN_IF_ERROR(number("vocab_size", s.vocab));
  MR_RETURN_IF_ERROR(number("context_length", s.context));
  MR_RETURN_IF_ERROR(number("embedding_length", s.dim));
  MR_RETURN_IF_ERROR(number("block_count", s.layers));
  if (s.ff > 0) MR_RETURN_IF_ERROR(number("feed_forward_length", s.ff));
  MR_RETURN_IF_ERROR(number("attention.head_count", s.heads));
  if (!is_nemotron(s) && !is_gemma4(s) && !has_kimi_delta(s))
    MR_RETURN_IF_ERROR(number("attention.head_count_kv", s.kv_heads));
  const Latent& latent = s.latent;
  const bool has_latent = latent.rank > 0;
  MR_RETURN_IF_ERROR(number("attention.key_length", has_latent ? latent.rank + latent.rotated : s.head_dim));
  MR_RETURN_IF_ERROR(number("attention.value_length", has_latent ? latent.rank : s.head_dim));
  if (has_latent) {
    MR_RETURN_IF_ERROR(number("attention.key_length_mla", s.head_dim));
    MR_RETURN_IF_ERROR(number("attention.value_length_mla", latent.v_dim));
    MR_RETURN_IF_ERROR(number("attention.kv_lora_rank", latent.rank));
    if (latent.q_rank > 0) MR_RETURN_IF_ERROR(number("attention.q_lora_rank", latent.q_rank));
  }
  MR_RETURN_IF_ERROR(real("attention.layer_norm_rms_epsilon", s.rms_eps));
  const std::int64_t unrotated = is_hybrid(s) ? 4 : s.architecture == "glm4moe" || is_minimax_m3(s) ? 2 : 1;
  MR_RETURN_IF_ERROR(number("rope.dimension_count", latent.rotated > 0 ? latent.rotated : s.head_dim / unrotated));
  MR_RETURN_IF_ERROR(real("rope.freq_base", s.rope_theta));
  if (s.experts > 0) {
    MR_RETURN_IF_ERROR(number("expert_count", s.experts));
    MR_RETURN_IF_ERROR(number("expert_used_count", s.top_k));
    MR_RETURN_IF_ERROR(number("expert_feed_forward_length", s.expert_ff));
  }
  if (is_hybrid(s)) {
    // Of the rotated pairs, those that turn with each of an image's coordinates; of text all are the same.
    const auto pairs = static_cast<std::int32_t>(s.head_dim / unrotated / 2), third = (pairs + 1) / 3;
    MR_RETURN_IF_ERROR(writer.add(fmt::format("{}.rope.dimension_sections", s.architecture),
                                  Value(std::make_shared<const modelfile::Array>(modelfile::Array{
                                      std::vector<std::int32_t>{third, third, pairs - 2 * third, 0}}))));
    MR_RETURN_IF_ERROR(number("full_attention_interval", kStateInterval));
    MR_RETURN_IF_ERROR(number("ssm.conv_kernel", kStateTaps));
    MR_RETURN_IF_ERROR(number("ssm.state_size", kStateDim));
    MR_RETURN_IF_ERROR(number("ssm.group_count", kStateKeyHeads));
    MR_RETURN_IF_ERROR(number("ssm.time_step_rank", s.state_heads));
    MR_RETURN_IF_ERROR(number("ssm.inner_size", s.state_heads * kStateDim));
    if (s.experts > 0) MR_RETURN_IF_ERROR(number("expert_shared_feed_forward_length", s.expert_ff));
  }
  if (is_nemotron(s)) MR_RETURN_IF_ERROR(add_nemotron_keys(s, writer));
  if (is_nemotron(s) || is_falcon_h1(s)) MR_RETURN_IF_ERROR(add_scan_keys(s, writer));
  if (has_kimi_delta(s)) MR_RETURN_IF_ERROR(add_kimi_keys(s, writer));
  if (s.index.top_k > 0) {
    MR_RETURN_IF_ERROR(number("attention.indexer.head_count", is_minimax_m3(s) ? s.kv_heads : s.index.heads));
    MR_RETURN_IF_ERROR(number("attention.indexer.key_length", s.index.dim));
    MR_RETURN_IF_ERROR(number("attention.indexer.top_k", s.index.top_k));
    if (s.index.block > 0) {
      MR_RETURN_IF_ERROR(number("attention.indexer.block_size", s.index.block));
      MR_RETURN_IF_ERROR(number("attention.indexer.local_blocks", 1));
    }
    std::vector<bool> own;
    for (std::int64_t i = 0; i < s.layers; ++i) own.push_back(indexes(s, i));
    if (s.architecture == "glm-dsa")
      MR_RETURN_IF_ERROR(writer.add("glm-dsa.attention.indexer.types", modelfile::array_value(own)));
  }
  if (s.architecture == "mistral4") {
    MR_RETURN_IF_ERROR(writer.add("mistral4.rope.scaling.type", Value(std::string("yarn"))));
    MR_RETURN_IF_ERROR(real("rope.scaling.factor", 128));
    MR_RETURN_IF_ERROR(number("rope.scaling.original_context_length", 8192));
    MR_RETURN_IF_ERROR(real("rope.scaling.yarn_log_multiplier", 0.1));
    MR_RETURN_IF_ERROR(real("attention.temperature_scale", 0.1));
    MR_RETURN_IF_ERROR(number("attention.temperature_length", 8192));
  }
  if (s.architecture == "glm4moe" || is_minimax_m3(s) || has_latent) {
    const Mixing& mixing = s.mixing;
    MR_RETURN_IF_ERROR(number("leading_dense_block_count", mixing.leading));
    MR_RETURN_IF_ERROR(number("expert_shared_count", mixing.shared));
    MR_RETURN_IF_ERROR(number("expert_gating_func", mixing.sigmoid ? 2 : 1));
    MR_RETURN_IF_ERROR(
        writer.add(s.architecture + ".expert_weights_norm", Value(mixing.sigmoid || s.architecture == "mistral4")));
    if (mixing.scale != 1) MR_RETURN_IF_ERROR(real("expert_weights_scale", mixing.scale));
    if (mixing.groups > 1) {
      MR_RETURN_IF_ERROR(number("expert_group_count", mixing.groups));
      MR_RETURN_IF_ERROR(number("expert_group_used_count", mixing.groups_used));
    }
  }
  if (s.architecture == "gemma3") {
    MR_RETURN_IF_ERROR(number("attention.sliding_window", 1024));
    MR_RETURN_IF_ERROR(writer.add("gemma3.rope.scaling.type", Value(std::string("linear"))));
    MR_RETURN_IF_ERROR(real("rope.scaling.factor", 8));
  }
  if (is_gemma4(s)) MR_RETURN_IF_ERROR(add_gemma4_keys(s, writer));
  if (is_qwen4exp(s)) MR_RETURN_IF_ERROR(add_qwen4exp_keys(s, writer));
  if (is_deepseek4(s)) MR_RETURN_IF_ERROR(add_deepseek4_keys(s, writer));
  if (s.architecture == "gpt-oss") {
    MR_RETURN_IF_ERROR(number("attention.sliding_window", 128));
    MR_RETURN_IF_ERROR(writer.add("gpt-oss.rope.scaling.type", Value(std::string("yarn"))));
    MR_RETURN_IF_ERROR(real("rope.scaling.factor", 32));
    MR_RETURN_IF_ERROR(number("rope.scaling.original_context_length", 4096));
  }
  return {};
}

}  // namespace millrace::synth

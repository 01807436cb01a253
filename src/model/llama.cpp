// Llama: pre-norm decoder layers of grouped-query attention with RoPE (interleaved pairs) and a SwiGLU feed-forward,
// or a mixture of them. Sources: LLaMA (arXiv:2302.13971), Llama 2 (arXiv:2307.09288), Mixtral (arXiv:2401.04088);
// tensor names as in the GGUF specification.

#include <algorithm>
#include <cmath>
#include <tuple>

#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"
#include "model/unit_builder.h"

namespace millrace::model {
namespace {

using exec::Act;
using exec::WeightRef;
using residency::UnitKind;

// Buffers of a pass, by index into PassShape::buffers. kFf holds the hidden layer of a dense feed-forward, or what a
// mixture adds to the residual stream.
constexpr Act kX{0}, kH{1}, kQ{2}, kK{3}, kV{4}, kAttended{5}, kFf{6}, kLast{7};

struct Layer {
  WeightRef attn_norm, q, k, v, q_bias, k_bias, v_bias, attn_out, attn_out_bias, ffn_norm;
  WeightRef gate, up, down;  // dense
  WeightRef router;          // mixture
  exec::Experts experts;
};

class Llama final : public Model {
 public:
  static Expected<std::unique_ptr<Model>> make(const modelfile::Model& file, const LoadOptions& options);

  exec::PassShape pass_shape(std::int64_t max_rows, std::int64_t max_logit_rows,
                             std::int64_t max_positions) const override;
  void forward(exec::Ops& ops) const override;

 private:
  void attend(exec::Ops& ops, std::int64_t index) const;
  void feed_forward(exec::Ops& ops, std::int64_t index) const;
  void list_layer(UnitBuilder& units, int index, double expert_scale);

  std::vector<Layer> layers_;
  WeightRef embedding_, output_norm_, head_;
  std::vector<float> inv_freq_;  // [rotary / 2]
  exec::Rope rope_;
  float eps_ = 0;
};

// --- The layer ---

void Llama::forward(exec::Ops& ops) const {
  ops.embed(kX, embedding_);
  for (std::int64_t index = 0; index < hp_.layers && !ops.failed(); ++index) {
    attend(ops, index);
    feed_forward(ops, index);
  }
  ops.select_logit_rows(kLast, kX);
  if (ops.wants_hidden()) {
    ops.rms_norm(kX, kX, output_norm_, eps_);
    ops.hidden(kX);
  }
  ops.rms_norm(kLast, kLast, output_norm_, eps_);
  ops.logits(head_, kLast);
}

/// x += W_out attention(rope(W_q h), rope(W_k h), W_v h), where h = norm(x).
void Llama::attend(exec::Ops& ops, std::int64_t index) const {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const exec::Product qkv[] = {{kQ, layer.q, layer.q_bias}, {kK, layer.k, layer.k_bias}, {kV, layer.v, layer.v_bias}};
  const exec::Product out[] = {{kH, layer.attn_out, layer.attn_out_bias}};
  const float scale = 1.0f / std::sqrt(static_cast<float>(hp_.head_dim));

  ops.rms_norm(kH, kX, layer.attn_norm, eps_);
  ops.matmul(qkv, kH);
  ops.rope(kQ, hp_.heads, hp_.head_dim, rope_);
  ops.rope(kK, hp_.kv_heads, hp_.head_dim, rope_);
  ops.store_kv(index, kK, kV);
  ops.attention(kAttended, kQ, index, {hp_.heads, hp_.kv_heads, hp_.head_dim, scale, 0});
  ops.matmul(out, kAttended);
  ops.add(kX, kH);
}

/// x += W_down (silu(W_gate h) * W_up h), where h = norm(x); or the router's mixture of such networks.
void Llama::feed_forward(exec::Ops& ops, std::int64_t index) const {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  ops.rms_norm(kH, kX, layer.ffn_norm, eps_);
  if (hp_.experts > 0) {
    ops.moe(kFf, kH, layer.router, index, layer.experts);
    ops.add(kX, kFf);
  } else {
    ops.matmul_swiglu(kFf, layer.gate, layer.up, kH);
    ops.matmul(kH, layer.down, kFf);
    ops.add(kX, kH);
  }
}

// --- Its shapes and weights ---

exec::PassShape Llama::pass_shape(std::int64_t max_rows, std::int64_t max_logit_rows,
                                  std::int64_t max_positions) const {
  const std::int64_t q_dim = hp_.heads * hp_.head_dim, kv_dim = hp_.kv_heads * hp_.head_dim;
  exec::PassShape shape;
  shape.buffers = {{.name = "x", .cols = hp_.model_dim, .whole_pass = true},
                   {"h", hp_.model_dim},
                   {"q", q_dim},
                   {"k", kv_dim},
                   {"v", kv_dim},
                   {"attended", q_dim},
                   {"ff", hp_.experts > 0 ? hp_.model_dim : hp_.ff_dim},
                   {"last", hp_.model_dim, true}};
  shape.max_rows = max_rows;
  shape.max_logit_rows = max_logit_rows;
  shape.max_positions = max_positions;
  shape.vocab = hp_.vocab;
  shape.widest_input = std::max({hp_.model_dim, q_dim, hp_.experts > 0 ? hp_.expert_ff : hp_.ff_dim});
  shape.heads = hp_.heads;
  shape.kv_heads = hp_.kv_heads;
  shape.head_dim = hp_.head_dim;
  shape.experts = hp_.experts;
  shape.top_k = hp_.top_k;
  shape.expert_ff = hp_.expert_ff;
  shape.model_dim = hp_.model_dim;
  return shape;
}

void Llama::list_layer(UnitBuilder& units, int index, double expert_scale) {
  const std::int64_t q_dim = hp_.heads * hp_.head_dim, kv_dim = hp_.kv_heads * hp_.head_dim;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  Layer layer;
  units.begin(UnitKind::trunk, index);
  layer.attn_norm = units.vector(name("attn_norm.weight"), hp_.model_dim);
  layer.q = units.matrix(name("attn_q.weight"), hp_.model_dim, q_dim);
  layer.q_bias = units.optional_vector(name("attn_q.bias"), q_dim);
  layer.k = units.matrix(name("attn_k.weight"), hp_.model_dim, kv_dim);
  layer.k_bias = units.optional_vector(name("attn_k.bias"), kv_dim);
  layer.v = units.matrix(name("attn_v.weight"), hp_.model_dim, kv_dim);
  layer.v_bias = units.optional_vector(name("attn_v.bias"), kv_dim);
  layer.attn_out = units.matrix(name("attn_output.weight"), q_dim, hp_.model_dim);
  layer.attn_out_bias = units.optional_vector(name("attn_output.bias"), hp_.model_dim);
  layer.ffn_norm = units.vector(name("ffn_norm.weight"), hp_.model_dim);
  if (hp_.experts == 0) {
    layer.gate = units.matrix(name("ffn_gate.weight"), hp_.model_dim, hp_.ff_dim);
    layer.up = units.matrix(name("ffn_up.weight"), hp_.model_dim, hp_.ff_dim);
    layer.down = units.matrix(name("ffn_down.weight"), hp_.ff_dim, hp_.model_dim);
    units.feed_forward({layer.gate, layer.up, layer.down});
    for (const char* bias : {"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"}) units.refuse(name(bias));
    units.end();
  } else {
    layer.router = units.matrix(name("ffn_gate_inp.weight"), hp_.model_dim, hp_.experts);
    units.refuse(name("ffn_gate_shexp.weight"));
    units.end();
    layer.experts.count = static_cast<std::int32_t>(hp_.experts);
    layer.experts.top_k = static_cast<std::int32_t>(hp_.top_k);
    layer.experts.scale = static_cast<float>(expert_scale);
    layer.experts.first_unit = units.experts(index, hp_.experts, hp_.model_dim, hp_.expert_ff);
  }
  layers_.push_back(layer);
}

Expected<std::unique_ptr<Model>> Llama::make(const modelfile::Model& file, const LoadOptions& options) {
  auto model = std::make_unique<Llama>();
  Hyperparameters& hp = model->hp_;
  MR_ASSIGN_OR_RETURN(hp, read_hyperparameters(file));
  if (hp.experts == 0 && hp.ff_dim == 0)
    return error(Code::corrupt, "{} is missing or 0", arch_key(file, "feed_forward_length"));
  MR_ASSIGN_OR_RETURN(const double expert_scale, expert_weights_scale(file));
  MR_ASSIGN_OR_RETURN(model->inv_freq_, rope_inverse_frequencies(file, hp));
  model->rope_ = {model->inv_freq_, hp.rotary, false, 1.0f};
  model->eps_ = static_cast<float>(hp.rms_eps);

  UnitBuilder units(file, model->units_);
  model->embedding_ = units.embedding(hp.model_dim, hp.vocab);
  for (int index = 0; index < hp.layers && units.status().ok(); ++index) model->list_layer(units, index, expert_scale);
  std::tie(model->output_norm_, model->head_) = units.output(hp.model_dim, hp.vocab, model->embedding_);
  MR_RETURN_IF_ERROR(units.status());
  model->units_.cut(options.tile_bytes);
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace

Expected<std::unique_ptr<Model>> make_llama(const modelfile::Model& file, const LoadOptions& options) {
  return Llama::make(file, options);
}

}  // namespace millrace::model

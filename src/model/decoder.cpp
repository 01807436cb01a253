#include "model/decoder.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "model/unit_builder.h"

namespace millrace::model {
namespace {

using exec::Act;
using exec::WeightRef;
using residency::UnitKind;

// Buffers of a pass, by index into PassShape::buffers. kHidden holds the inside of a dense feed-forward, kMixed what a
// mixture adds to the residual stream.
constexpr Act kX{0}, kH{1}, kQ{2}, kK{3}, kV{4}, kAttended{5}, kHidden{6}, kMixed{7}, kLast{8};

/// A layer's weights; none() where the spec or the file has none.
struct LayerWeights {
  WeightRef attn_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, attn_out, attn_out_bias, ffn_norm;
  WeightRef gate, up, down;  // dense
  WeightRef router;          // mixture
  exec::Experts experts;
};

class Decoder final : public Model {
 public:
  Decoder(Hyperparameters hp, DecoderSpec spec) : spec_(std::move(spec)) { hp_ = std::move(hp); }
  Status list_units(const modelfile::Model& file, const LoadOptions& options);

  exec::PassShape pass_shape(std::int64_t max_rows, std::int64_t max_logit_rows,
                             std::int64_t max_positions) const override;
  void forward(exec::Ops& ops) const override;

 private:
  void attend(exec::Ops& ops, std::int64_t index) const;
  void feed_forward(exec::Ops& ops, std::int64_t index) const;
  void list_attention(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_feed_forward(UnitBuilder& units, int index, LayerWeights& weights) const;
  float eps() const { return static_cast<float>(hp_.rms_eps); }

  DecoderSpec spec_;
  std::vector<LayerWeights> layers_;
  std::vector<exec::Rope> ropes_;
  WeightRef embedding_, output_norm_, head_;
};

// --- The layer ---

void Decoder::forward(exec::Ops& ops) const {
  ops.embed(kX, embedding_);
  for (std::int64_t index = 0; index < hp_.layers && !ops.failed(); ++index) {
    attend(ops, index);
    feed_forward(ops, index);
  }
  ops.select_logit_rows(kLast, kX);
  if (ops.wants_hidden()) {
    ops.rms_norm(kX, kX, output_norm_, eps());
    ops.hidden(kX);
  }
  ops.rms_norm(kLast, kLast, output_norm_, eps());
  ops.logits(head_, kLast);
}

/// x += W_out attention(rope(norm(W_q h)), rope(norm(W_k h)), W_v h), where h = norm(x).
void Decoder::attend(exec::Ops& ops, std::int64_t index) const {
  const AttentionSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention;
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const exec::Rope& rope = ropes_[static_cast<std::size_t>(spec.rope)];
  const exec::Product qkv[] = {{kQ, layer.q, layer.q_bias}, {kK, layer.k, layer.k_bias}, {kV, layer.v, layer.v_bias}};
  const exec::Product out[] = {{kH, layer.attn_out, layer.attn_out_bias}};

  ops.rms_norm(kH, kX, layer.attn_norm, eps());
  ops.matmul(qkv, kH);
  if (spec.norm_heads) {
    ops.rms_norm_heads(kQ, layer.q_norm, spec.head_dim, eps());
    ops.rms_norm_heads(kK, layer.k_norm, spec.head_dim, eps());
  }
  ops.rope(kQ, spec.heads, spec.head_dim, rope);
  ops.rope(kK, spec.kv_heads, spec.head_dim, rope);
  ops.store_kv(index, kK, kV);
  ops.attention(kAttended, kQ, index, {spec.heads, spec.kv_heads, spec.head_dim, spec.scale, spec.window});
  ops.matmul(out, kAttended);
  ops.add(kX, kH);
}

/// x += W_down (silu(W_gate h) * W_up h), where h = norm(x); or the router's mixture of such networks.
void Decoder::feed_forward(exec::Ops& ops, std::int64_t index) const {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  ops.rms_norm(kH, kX, layer.ffn_norm, eps());
  if (spec.dense()) {
    ops.matmul_swiglu(kHidden, layer.gate, layer.up, kH);
    ops.matmul(kH, layer.down, kHidden);
    ops.add(kX, kH);
  } else {
    ops.moe(kMixed, kH, layer.router, index, layer.experts);
    ops.add(kX, kMixed);
  }
}

// --- Its shapes ---

exec::PassShape Decoder::pass_shape(std::int64_t max_rows, std::int64_t max_logit_rows,
                                    std::int64_t max_positions) const {
  exec::PassShape shape;
  shape.max_rows = max_rows;
  shape.max_logit_rows = max_logit_rows;
  shape.max_positions = max_positions;
  shape.vocab = hp_.vocab;
  shape.model_dim = hp_.model_dim;
  std::int64_t q_dim = 0, kv_dim = 0, ff_dim = 0;
  for (const LayerSpec& layer : spec_.layers) {
    q_dim = std::max(q_dim, layer.attention.q_dim());
    kv_dim = std::max(kv_dim, layer.attention.kv_dim());
    ff_dim = std::max(ff_dim, layer.ff_dim);
    shape.heads = std::max(shape.heads, layer.attention.heads);
    shape.kv_heads = std::max(shape.kv_heads, layer.attention.kv_heads);
    shape.head_dim = std::max(shape.head_dim, layer.attention.head_dim);
    if (layer.dense()) continue;
    shape.experts = std::max(shape.experts, layer.mixture.experts);
    shape.top_k = std::max(shape.top_k, layer.mixture.top_k);
    shape.expert_ff = std::max(shape.expert_ff, layer.mixture.ff_dim);
  }
  shape.widest_input = std::max({hp_.model_dim, q_dim, ff_dim, shape.expert_ff});
  shape.buffers = {{.name = "x", .cols = hp_.model_dim, .whole_pass = true},
                   {"h", hp_.model_dim},
                   {"q", q_dim},
                   {"k", kv_dim},
                   {"v", kv_dim},
                   {"attended", q_dim},
                   {"hidden", ff_dim},
                   {"mixed", shape.experts > 0 ? hp_.model_dim : 0},
                   {"last", hp_.model_dim, true}};
  return shape;
}

// --- Its weights, in the order in which a pass uses them ---

void Decoder::list_attention(UnitBuilder& units, int index, LayerWeights& weights) const {
  const AttentionSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention;
  const std::int64_t dim = hp_.model_dim;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  const auto bias = [&](std::string_view tensor, std::int64_t size) {
    return spec.may_have_biases ? units.optional_vector(name(tensor), size) : WeightRef{};
  };
  weights.attn_norm = units.vector(name("attn_norm.weight"), dim);
  weights.q = units.matrix(name("attn_q.weight"), dim, spec.q_dim());
  weights.q_bias = bias("attn_q.bias", spec.q_dim());
  weights.k = units.matrix(name("attn_k.weight"), dim, spec.kv_dim());
  weights.k_bias = bias("attn_k.bias", spec.kv_dim());
  weights.v = units.matrix(name("attn_v.weight"), dim, spec.kv_dim());
  weights.v_bias = bias("attn_v.bias", spec.kv_dim());
  if (spec.norm_heads) {
    weights.q_norm = units.vector(name("attn_q_norm.weight"), spec.head_dim);
    weights.k_norm = units.vector(name("attn_k_norm.weight"), spec.head_dim);
  }
  weights.attn_out = units.matrix(name("attn_output.weight"), spec.q_dim(), dim);
  weights.attn_out_bias = bias("attn_output.bias", dim);
}

/// Closes the trunk's unit; a mixture's experts are units of their own behind it.
void Decoder::list_feed_forward(UnitBuilder& units, int index, LayerWeights& weights) const {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const std::int64_t dim = hp_.model_dim;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  weights.ffn_norm = units.vector(name("ffn_norm.weight"), dim);
  if (spec.dense()) {
    weights.gate = units.matrix(name("ffn_gate.weight"), dim, spec.ff_dim);
    weights.up = units.matrix(name("ffn_up.weight"), dim, spec.ff_dim);
    weights.down = units.matrix(name("ffn_down.weight"), spec.ff_dim, dim);
    units.feed_forward({weights.gate, weights.up, weights.down});
    units.end();
    return;
  }
  const MixtureSpec& mixture = spec.mixture;
  weights.router = units.matrix(name("ffn_gate_inp.weight"), dim, mixture.experts);
  units.end();
  weights.experts.count = static_cast<std::int32_t>(mixture.experts);
  weights.experts.top_k = static_cast<std::int32_t>(mixture.top_k);
  weights.experts.normalize = mixture.normalize;
  weights.experts.scale = mixture.scale;
  weights.experts.first_unit = units.experts(index, mixture.experts, dim, mixture.ff_dim);
}

Status Decoder::list_units(const modelfile::Model& file, const LoadOptions& options) {
  for (const RopeSpec& rope : spec_.ropes) ropes_.push_back({rope.inv_freq, rope.rotary, rope.neox, rope.magnitude});
  UnitBuilder units(file, units_);
  embedding_ = units.embedding(hp_.model_dim, hp_.vocab);
  for (int index = 0; index < hp_.layers && units.status().ok(); ++index) {
    LayerWeights& weights = layers_.emplace_back();
    units.begin(UnitKind::trunk, index);
    list_attention(units, index, weights);
    list_feed_forward(units, index, weights);
    units.refuse_unused(index);
  }
  std::tie(output_norm_, head_) = units.output(hp_.model_dim, hp_.vocab, embedding_);
  MR_RETURN_IF_ERROR(units.status());
  units_.cut(options.tile_bytes);
  return {};
}

}  // namespace

Expected<std::unique_ptr<Model>> make_decoder(const modelfile::Model& file, const LoadOptions& options,
                                              Hyperparameters hp, DecoderSpec spec) {
  auto model = std::make_unique<Decoder>(std::move(hp), std::move(spec));
  MR_RETURN_IF_ERROR(model->list_units(file, options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace millrace::model

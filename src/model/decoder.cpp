#include "model/decoder.h"

#include <tuple>
#include <utility>

#include "exec/ops.h"
#include "model/unit_builder.h"

namespace millrace::model {
namespace {

using exec::Act;
using exec::Rows;
using exec::WeightRef;
using residency::UnitKind;

/// A layer's weights; none() where the spec or the file has none.
struct LayerWeights {
  WeightRef attn_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, attn_out, attn_out_bias, ffn_norm;
  WeightRef gate, up, down;  // dense
  WeightRef router;          // mixture
  exec::Experts experts;
};

class Decoder {
 public:
  Decoder(const Hyperparameters& hp, const DecoderSpec& spec, exec::Ops& ops) : hp_(hp), spec_(spec), ops_(ops) {}
  Status list_units(const modelfile::Model& file, residency::UnitTable& table);
  void record();

 private:
  void attend(std::int64_t index);
  void feed_forward(std::int64_t index);
  void list_attention(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_feed_forward(UnitBuilder& units, int index, LayerWeights& weights) const;
  float eps() const { return static_cast<float>(hp_.rms_eps); }

  const Hyperparameters& hp_;
  const DecoderSpec& spec_;
  exec::Ops& ops_;
  std::vector<LayerWeights> layers_;
  WeightRef embedding_, output_norm_, head_;
  Act x_, h_;  // the residual stream; what a block reads of it, and what it adds to it
};

// --- The layer ---

void Decoder::record() {
  x_ = ops_.buffer("x", hp_.model_dim, Rows::whole);
  h_ = ops_.buffer("h", hp_.model_dim);
  const Act last = ops_.buffer("last", hp_.model_dim, Rows::logits);
  for (const RopeSpec& rope : spec_.ropes) ops_.add_rope({rope.inv_freq, rope.rotary, rope.neox, rope.magnitude});

  ops_.embed(x_, embedding_);
  for (std::int64_t index = 0; index < hp_.layers; ++index) {
    attend(index);
    feed_forward(index);
  }
  ops_.begin_block();
  ops_.select_logit_rows(last, x_);
  ops_.begin_hidden();
  ops_.rms_norm(x_, x_, output_norm_, eps());
  ops_.hidden(x_);
  ops_.end_hidden();
  ops_.rms_norm(last, last, output_norm_, eps());
  ops_.logits(head_, last);
}

/// x += W_out attention(rope(norm(W_q h)), rope(norm(W_k h)), W_v h), where h = norm(x).
void Decoder::attend(std::int64_t index) {
  const AttentionSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention;
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const Act q = ops_.buffer("q", spec.q_dim()), k = ops_.buffer("k", spec.kv_dim()),
            v = ops_.buffer("v", spec.kv_dim());
  const Act attended = ops_.buffer("attended", spec.q_dim());
  const exec::Product qkv[] = {{q, layer.q, layer.q_bias}, {k, layer.k, layer.k_bias}, {v, layer.v, layer.v_bias}};
  const exec::Product out[] = {{h_, layer.attn_out, layer.attn_out_bias}};

  ops_.begin_block();
  ops_.rms_norm(h_, x_, layer.attn_norm, eps());
  ops_.matmul(qkv, h_);
  if (spec.norm_heads) {
    ops_.rms_norm_heads(q, layer.q_norm, spec.head_dim, eps());
    ops_.rms_norm_heads(k, layer.k_norm, spec.head_dim, eps());
  }
  ops_.rope(q, spec.heads, spec.head_dim, spec.rope);
  ops_.rope(k, spec.kv_heads, spec.head_dim, spec.rope);
  ops_.store_kv(index, k, v);
  ops_.attention(attended, q, index, {spec.heads, spec.kv_heads, spec.head_dim, spec.scale, spec.window});
  ops_.matmul(out, attended);
  ops_.add(x_, h_);
}

/// x += W_down (silu(W_gate h) * W_up h), where h = norm(x); or the router's mixture of such networks.
void Decoder::feed_forward(std::int64_t index) {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  ops_.begin_block();
  ops_.rms_norm(h_, x_, layer.ffn_norm, eps());
  if (spec.dense()) {
    const Act hidden = ops_.buffer("hidden", spec.ff_dim);
    ops_.matmul_swiglu(hidden, layer.gate, layer.up, h_);
    ops_.matmul(h_, layer.down, hidden);
    ops_.add(x_, h_);
  } else {
    const Act mixed = ops_.buffer("mixed", hp_.model_dim);
    ops_.moe(mixed, h_, layer.router, index, layer.experts);
    ops_.add(x_, mixed);
  }
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

Status Decoder::list_units(const modelfile::Model& file, residency::UnitTable& table) {
  UnitBuilder units(file, table);
  embedding_ = units.embedding(hp_.model_dim, hp_.vocab);
  for (int index = 0; index < hp_.layers && units.status().ok(); ++index) {
    LayerWeights& weights = layers_.emplace_back();
    units.begin(UnitKind::trunk, index);
    list_attention(units, index, weights);
    list_feed_forward(units, index, weights);
    units.refuse_unused(index);
  }
  std::tie(output_norm_, head_) = units.output(hp_.model_dim, hp_.vocab, embedding_);
  return units.status();
}

}  // namespace

Expected<std::unique_ptr<Model>> make_decoder(const modelfile::Model& file, const LoadOptions& options,
                                              Hyperparameters hp, const DecoderSpec& spec) {
  exec::Ops ops;
  residency::UnitTable units;
  Decoder decoder(hp, spec, ops);
  MR_RETURN_IF_ERROR(decoder.list_units(file, units));
  decoder.record();
  MR_ASSIGN_OR_RETURN(exec::Program program, ops.finish());
  units.cut(options.tile_bytes);
  return std::make_unique<Model>(std::move(hp), std::move(units), std::move(program));
}

}  // namespace millrace::model

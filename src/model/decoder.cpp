#include "model/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "exec/ops.h"
#include "model/delta_net.h"
#include "model/mamba2.h"
#include "model/short_convolution.h"
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
  WeightRef attn_result_norm, ffn_result_norm, sinks;
  WeightRef q_low, q_low_norm, latent, latent_norm, shared_key, k_of_latent, v_of_latent;  // of latent attention
  DeltaNetWeights delta_net;                                                               // in attention's place
  Mamba2Weights mamba2;                                                                    // likewise
  ShortConvolutionWeights short_convolution;                                               // likewise
  WeightRef gate, up, down;                                                                // dense
  WeightRef shared_gate, shared_up, shared_down, shared_by;  // of a mixture's shared expert, and its gate
  WeightRef router;
  WeightRef router_norm, experts_norm, dense_result_norm, experts_result_norm;  // of one beside a dense feed-forward
  WeightRef per_layer_gate, per_layer_out, per_layer_norm;
  WeightRef output_scale;
  exec::Experts experts;
};

constexpr std::int64_t kShardStep = 32;  // rows: a block of quantized activations

/// What the block that guesses has beside its layer.
struct DraftWeights {
  WeightRef embedding, embedding_norm, states_norm, joined, norm, head;
};

/// A tensor that several weights are rows of.
struct RowsOf {
  const char* tensor;
  std::int64_t rows;
  bool holds;  // the file has it
};

/// Those of a shard. Whole blocks of activations lie on one side of a border, so that each device can quantize its own.
RowRange rows_of(const Shard& shard, std::int64_t rows) {
  const auto border = [&](std::int64_t index) {
    return index == shard.count ? rows : rows / kShardStep * index / shard.count * kShardStep;
  };
  return {border(shard.index), border(shard.index + 1) - border(shard.index)};
}

/// Whether each of `count` devices can have as many heads, with keys and values of its own. If not, all attend alike.
bool cuts_heads(const AttentionSpec& spec, std::int64_t count) {
  return spec.latent.rank == 0 && spec.norm != HeadNorm::together && spec.heads % count == 0 &&
         spec.kv_heads % count == 0 && spec.q_dim() / count % kShardStep == 0;
}

/// Of all layers that attend, because they share blocks.
bool cuts_heads(const DecoderSpec& spec, std::int64_t count) {
  return std::all_of(spec.layers.begin(), spec.layers.end(), [&](const LayerSpec& layer) {
    return layer.mixer != Mixer::attention || cuts_heads(layer.attention, count);
  });
}

class Decoder {
 public:
  /// stage: with its last layer named.
  Decoder(const Hyperparameters& hp, const DecoderSpec& spec, const Stage& stage, const Shard& shard, exec::Ops& ops)
      : hp_(hp),
        spec_(spec),
        stage_(stage),
        shard_(shard),
        heads_{cuts_heads(spec, shard.count) ? shard : Shard()},
        ops_(ops) {}
  Status list_units(const modelfile::Model& file, residency::UnitTable& table);
  /// Those of the block behind the layers, whose spec stands behind theirs.
  Status list_draft_block(const modelfile::Model& file, residency::UnitTable& table);
  /// Of the blocks behind the layers, from this one on, those that the file has.
  std::vector<residency::Unit> list_draft_blocks(const modelfile::Model& file, std::int64_t first) const;
  void record();
  void record_draft();

 private:
  void begin_program(std::span<const kv::LayerKv> kept);
  void end_program(WeightRef norm, WeightRef head);
  void hand_over();
  void embed_for_layers();
  void attend(std::int64_t index);
  void mix_tokens(std::int64_t index);
  void attend_latent(std::int64_t index);
  void remember(std::int64_t index);
  void feed_forward(std::int64_t index);
  void activate_products(const LayerSpec& spec, Act hidden, WeightRef gate, WeightRef up);
  Act gathered(const std::string& name, std::int64_t cols, std::int64_t first, Act own);
  Act own_of(const std::string& name, Act all);
  Act of_shared_expert(std::int64_t index);
  Act mixed(std::int64_t index, Act read, Act routed);
  void project(WeightRef weight, WeightRef bias, Act x);
  void mix(std::int64_t index);
  void mix_beside(std::int64_t index);
  void add_of_layer(std::int64_t index);
  void add_result(const LayerSpec& spec, Act result, WeightRef norm);
  void list_for_layers(UnitBuilder& units);
  void list_mixer(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_attention(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_latent_attention(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_feed_forward(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_dense(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_results(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_mixture(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_expert_scales(UnitBuilder& units, int index, exec::Experts& experts) const;
  float eps() const { return static_cast<float>(hp_.rms_eps); }
  bool begins() const { return stage_.first == 0; }
  bool ends() const { return stage_.last == hp_.layers; }
  RowRange own(std::int64_t rows) const { return rows_of(shard_, rows); }
  std::int64_t own_heads(std::int64_t heads) const { return heads / heads_.count; }
  kv::LayerKv kept_here(std::int64_t index) const {
    const LayerSpec& layer = spec_.layers[static_cast<std::size_t>(index)];
    kv::LayerKv kept = layer.kept();
    if (layer.mixer == Mixer::attention) kept.kv_heads = own_heads(kept.kv_heads);
    return kept;
  }

  const Hyperparameters& hp_;
  const DecoderSpec& spec_;
  const Stage stage_;
  const Shard shard_;
  const Shard heads_;  // of layers that attend; states and latents are not cut at all
  exec::Ops& ops_;
  std::vector<LayerWeights> layers_;  // by number; those of other stages have none
  WeightRef embedding_, output_norm_, head_;
  std::vector<std::pair<WeightRef, WeightRef>> scales_;  // of weights, by which their products are multiplied
  DraftWeights draft_;
  WeightRef layers_table_, layers_projection_, layers_norm_;  // of per-layer embeddings
  Act x_, h_;      // the residual stream; what a block reads of it, and what it adds to it
  Act of_layers_;  // per-layer embeddings, one layer's channels behind the other's
};

// --- The layer ---

void Decoder::begin_program(std::span<const kv::LayerKv> kept) {
  x_ = ops_.buffer("x", hp_.model_dim, Rows::whole);
  h_ = ops_.buffer("h", hp_.model_dim);
  ops_.keep(kv::Layout(kept));
  for (const auto& [weight, scale] : scales_) ops_.scale_products(weight, scale);
  for (const RopeSpec& rope : spec_.ropes)
    ops_.add_rope({rope.inv_freq, rope.rotary, rope.neox, rope.magnitude, rope.last});
}

/// What follows the layers.
void Decoder::end_program(WeightRef norm, WeightRef head) {
  const Act last = ops_.buffer("last", hp_.model_dim, Rows::logits);
  ops_.begin_layer();
  ops_.begin_block();
  ops_.select_logit_rows(last, x_);
  ops_.begin_hidden();
  ops_.rms_norm(x_, x_, norm, eps());
  ops_.hidden(x_);
  ops_.end_hidden();
  ops_.rms_norm(last, last, norm, eps());
  if (shard_.whole()) return ops_.logits(head, last, spec_.logit_scale, spec_.logit_cap);
  const RowRange rows = own(hp_.vocab);
  ops_.gather_logits(head, ops_.buffer("own logits", rows.count, Rows::logits), last, rows.first, hp_.vocab,
                     spec_.logit_scale, spec_.logit_cap);
}

/// What follows the layers of a stage that others follow: in every pass, not only in those whose states are wanted.
void Decoder::hand_over() {
  ops_.begin_layer();
  ops_.hidden(x_);
}

void Decoder::record() {
  std::vector<kv::LayerKv> kept(static_cast<std::size_t>(stage_.first), {.keeps = kv::Keeps::nothing});
  for (std::int64_t index = stage_.first; index < stage_.last; ++index) kept.push_back(kept_here(index));
  begin_program(kept);
  if (begins())
    ops_.embed(x_, embedding_, spec_.embedding_scale);
  else
    ops_.given(x_);
  if (spec_.per_layer_dim > 0) embed_for_layers();
  for (std::int64_t index = stage_.first; index < stage_.last; ++index) {
    ops_.begin_layer();
    mix_tokens(index);
    if (spec_.layers[static_cast<std::size_t>(index)].feeds_forward()) feed_forward(index);
  }
  if (ends())
    end_program(output_norm_, head_);
  else
    hand_over();
}

/// x = W [norm(embedding) | norm(states)], then a layer, then the head: what comes behind a token that comes behind
/// those states. Source: DeepSeek-V3 (arXiv:2412.19437).
void Decoder::record_draft() {
  std::vector<kv::LayerKv> kept(static_cast<std::size_t>(hp_.layers), {.keeps = kv::Keeps::nothing});
  kept.push_back(spec_.layers.back().kept());
  begin_program(kept);
  const Act embedded = ops_.buffer("embedded", hp_.model_dim, Rows::whole),
            states = ops_.buffer("states", hp_.model_dim, Rows::whole),
            joined = ops_.buffer("joined", 2 * hp_.model_dim);
  ops_.embed(embedded, draft_.embedding, spec_.embedding_scale);
  ops_.given(states);
  ops_.rms_norm(embedded, embedded, draft_.embedding_norm, eps());
  ops_.rms_norm(states, states, draft_.states_norm, eps());
  ops_.join(joined, embedded, states);
  ops_.matmul(x_, draft_.joined, joined);
  ops_.begin_layer();
  mix_tokens(hp_.layers);
  if (spec_.layers.back().feeds_forward()) feed_forward(hp_.layers);
  end_program(draft_.norm, draft_.head);
}

/// Of each token, for every layer: (sqrt(d) * embedding + norm(W x / sqrt(model_dim))) / sqrt(2), d channels each.
void Decoder::embed_for_layers() {
  const std::int64_t each = spec_.per_layer_dim, all = each * hp_.layers;
  const Act projected = ops_.buffer("projected for layers", all);
  of_layers_ = ops_.buffer("of layers", all, Rows::whole);
  ops_.embed(of_layers_, layers_table_, std::sqrt(static_cast<float>(each)));
  ops_.matmul(projected, layers_projection_, x_);
  ops_.scale(projected, 1.0f / std::sqrt(static_cast<float>(hp_.model_dim)));
  ops_.rms_norm_heads(projected, layers_norm_, each, eps());
  ops_.add(of_layers_, projected);
  ops_.scale(of_layers_, std::sqrt(0.5f));
}

/// What stands before the feed-forward.
void Decoder::mix_tokens(std::int64_t index) {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  if (spec.mixer == Mixer::none) return;
  if (spec.mixer != Mixer::attention)
    remember(index);
  else if (spec.attention.latent.rank > 0)
    attend_latent(index);
  else
    attend(index);
}

/// x += mixer(norm(x)), with a state in attention's place.
void Decoder::remember(std::int64_t index) {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  ops_.begin_block();
  ops_.rms_norm(h_, x_, layer.attn_norm, eps());
  if (spec.mixer == Mixer::delta_net)
    record_delta_net(ops_, index, spec.delta_net, layer.delta_net, h_, eps());
  else if (spec.mixer == Mixer::mamba2)
    record_mamba2(ops_, index, spec.mamba2, layer.mamba2, h_, eps());
  else
    record_short_convolution(ops_, index, spec.short_convolution, layer.short_convolution, h_);
  add_result(spec, h_, layer.attn_result_norm);
}

/// x += W_out (gate * attention(rope(norm(W_q h)), rope(norm(W_k h)), W_v h)), where h = norm(x); mostly without a
/// gate.
void Decoder::attend(std::int64_t index) {
  const AttentionSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention;
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const std::int64_t heads = own_heads(spec.heads), kv_heads = own_heads(spec.kv_heads);
  const std::int64_t q_dim = heads * spec.head_dim, kv_dim = kv_heads * spec.head_dim;
  const Act q = ops_.buffer("q", q_dim), k = ops_.buffer("k", kv_dim), v = ops_.buffer("v", kv_dim);
  const Act attended = ops_.buffer("attended", q_dim);
  const Act gate = spec.gated ? ops_.buffer("gate", q_dim) : Act();
  const Act q_made = spec.gated ? ops_.buffer("q and gate", 2 * q_dim) : q;
  const exec::Product qkv[] = {{q_made, layer.q, layer.q_bias}, {k, layer.k, layer.k_bias}, {v, layer.v, layer.v_bias}};
  const bool own = spec.reads < 0;  // keys and values

  ops_.begin_block();
  ops_.rms_norm(h_, x_, layer.attn_norm, eps());
  ops_.matmul(std::span(qkv).first(!own ? 1 : spec.values_are_keys ? 2 : 3), h_);
  if (spec.gated) {
    ops_.pick_heads(q, q_made, heads, spec.head_dim, 0);
    ops_.pick_heads(gate, q_made, heads, spec.head_dim, spec.head_dim);
  }
  if (own && spec.values_are_keys) ops_.copy(v, k);
  if (spec.norm == HeadNorm::each) {
    ops_.rms_norm_heads(q, layer.q_norm, spec.head_dim, eps());
    if (own) ops_.rms_norm_heads(k, layer.k_norm, spec.head_dim, eps());
  }
  if (own && spec.norms_values) ops_.rms_norm_heads(v, {}, spec.head_dim, eps());
  if (spec.norm == HeadNorm::together) {
    ops_.rms_norm(q, q, layer.q_norm, eps());
    ops_.rms_norm(k, k, layer.k_norm, eps());
  }
  if (spec.temperature.scale != 0) ops_.temper(q, spec.temperature);
  if (spec.rope != kNoRope) ops_.rope(q, heads, spec.head_dim, spec.rope);
  if (own) {
    if (spec.rope != kNoRope) ops_.rope(k, kv_heads, spec.head_dim, spec.rope);
    ops_.store_kv(index, k, v);
  }
  ops_.attention(attended, q, index, {heads, kv_heads, spec.head_dim, spec.scale, spec.window, layer.sinks});
  if (spec.gated) ops_.sigmoid_gate(attended, gate);
  const Act all = heads_.whole() ? attended : gathered("all attended", spec.q_dim(), q_dim * heads_.index, attended);
  project(layer.attn_out, layer.attn_out_bias, all);
  add_result(spec_.layers[static_cast<std::size_t>(index)], h_, layer.attn_result_norm);
}

/// The absorbed form: head i's score of a token is (W_k,i^T q_i)^T c + rope(r_i)^T rope(k), c being the token's latent
/// and k the key beside it that all heads share, W_q h = [q_i | r_i] of each head; its value is W_v,i times the
/// weighted sum of latents. So keys and values are never made, whoever asks.
void Decoder::attend_latent(std::int64_t index) {
  const AttentionSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention;
  const LatentSpec& latent = spec.latent;
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const Act q = ops_.buffer("q", spec.q_dim()), c = ops_.buffer("latent", latent.rank),
            key = ops_.buffer("shared key", latent.rotated), query = ops_.buffer("query", spec.heads * latent.kept()),
            sums = ops_.buffer("sums of latents", spec.heads * latent.rank),
            attended = ops_.buffer("attended", spec.heads * latent.v_dim);
  const Act low = latent.q_rank > 0 ? ops_.buffer("low q", latent.q_rank) : q;
  const exec::Product products[] = {
      {low, latent.q_rank > 0 ? layer.q_low : layer.q, {}}, {c, layer.latent, {}}, {key, layer.shared_key, {}}};

  ops_.begin_block();
  ops_.rms_norm(h_, x_, layer.attn_norm, eps());
  ops_.matmul(products, h_);
  if (latent.q_rank > 0) {
    ops_.rms_norm(low, low, layer.q_low_norm, eps());
    ops_.matmul(q, layer.q, low);
  }
  ops_.rms_norm(c, c, layer.latent_norm, eps());
  ops_.rope(key, 1, latent.rotated, spec.rope);
  ops_.store_latent(index, c, key);
  ops_.rope(q, spec.heads, spec.head_dim, spec.rope);
  ops_.matmul_heads(query, layer.k_of_latent, q, spec.heads, {!latent.split, !latent.split});
  ops_.attention(sums, query, index, {spec.heads, 1, latent.kept(), spec.scale, spec.window, {}, latent.rank});
  ops_.matmul_heads(attended, layer.v_of_latent, sums, spec.heads, {!latent.split, false});
  project(layer.attn_out, {}, attended);
  add_result(spec_.layers[static_cast<std::size_t>(index)], h_, {});
}

/// `own` itself, or where it is a shard's, what all made.
Act Decoder::gathered(const std::string& name, std::int64_t cols, std::int64_t first, Act own) {
  if (shard_.whole()) return own;
  const Act all = ops_.buffer(name, cols);
  ops_.gather(all, own, first);
  return all;
}

/// Where a shard's columns of `all` are made; `all` itself where nothing is cut.
Act Decoder::own_of(const std::string& name, Act all) {
  return shard_.whole() ? all : ops_.buffer(name, own(hp_.model_dim).count);
}

/// h = W x (+ b).
void Decoder::project(WeightRef weight, WeightRef bias, Act x) {
  const RowRange rows = own(hp_.model_dim);
  const exec::Product product{own_of("own h", h_), weight, bias};
  ops_.matmul(std::span(&product, 1), x);
  if (!shard_.whole()) ops_.gather(h_, product.out, rows.first);
}

/// x += residual_scale * result, which may be normalised first.
void Decoder::add_result(const LayerSpec& spec, Act result, WeightRef norm) {
  if (spec.norms_results) ops_.rms_norm(result, result, norm, eps());
  ops_.add(x_, result, spec.residual_scale);
}

/// hidden = act(W_gate h) * W_up h, or act(W_up h).
void Decoder::activate_products(const LayerSpec& spec, Act hidden, WeightRef gate, WeightRef up) {
  if (spec.gated) return ops_.matmul_gated(hidden, gate, up, h_, spec.activation);
  ops_.matmul(hidden, up, h_);
  ops_.activate(hidden, spec.activation);
}

/// x += W_down (act(W_gate h) * W_up h), where h = norm(x); or the router's mixture of such networks, or both.
void Decoder::feed_forward(std::int64_t index) {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  ops_.begin_block();
  ops_.rms_norm(h_, x_, layer.ffn_norm, eps());
  if (spec.ff_dim > 0) {
    const RowRange rows = own(spec.ff_dim);
    const Act hidden = ops_.buffer("hidden", rows.count);
    activate_products(spec, hidden, layer.gate, layer.up);
    project(layer.down, {}, gathered("all hidden", spec.ff_dim, rows.first, hidden));
  }
  if (!spec.mixes())
    add_result(spec, h_, layer.ffn_result_norm);
  else if (spec.mixture.beside_dense)
    mix_beside(index);
  else
    mix(index);
  if (spec_.per_layer_dim > 0) add_of_layer(index);
  if (spec.output_scale) ops_.scale(x_, layer.output_scale);
}

/// x += norm(W_out (act(W_gate x) * e)), e being what the layer has of the token.
void Decoder::add_of_layer(std::int64_t index) {
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const Act gated = ops_.buffer("of layer", spec_.per_layer_dim);
  ops_.matmul(gated, layer.per_layer_gate, x_);
  ops_.gate(gated, of_layers_, index, spec_.layers[static_cast<std::size_t>(index)].activation);
  ops_.matmul(h_, layer.per_layer_out, gated);
  ops_.rms_norm(h_, h_, layer.per_layer_norm, eps());
  ops_.add(x_, h_);
}

/// h is the dense feed-forward's result: x += norm(norm(h) + norm(experts(norm(x)))), the router reading norm(x) /
/// sqrt(model_dim).
void Decoder::mix_beside(std::int64_t index) {
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const Act routed = ops_.buffer("routed", hp_.model_dim), read = ops_.buffer("read", hp_.model_dim);
  ops_.rms_norm(h_, h_, layer.dense_result_norm, eps());
  ops_.rms_norm(routed, x_, layer.router_norm, eps());
  ops_.scale(routed, 1.0f / std::sqrt(static_cast<float>(hp_.model_dim)));
  ops_.rms_norm(read, x_, layer.experts_norm, eps());
  const Act result = mixed(index, read, routed);
  ops_.rms_norm(result, result, layer.experts_result_norm, eps());
  ops_.add(h_, result);
  add_result(spec_.layers[static_cast<std::size_t>(index)], h_, layer.ffn_result_norm);
}

/// x += experts(h), beside them one that all tokens share.
void Decoder::mix(std::int64_t index) {
  add_result(spec_.layers[static_cast<std::size_t>(index)], mixed(index, h_, h_),
             layers_[static_cast<std::size_t>(index)].ffn_result_norm);
}

/// What an expert gives that all tokens share: the shard's columns of it.
Act Decoder::of_shared_expert(std::int64_t index) {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const std::int64_t ff = spec.mixture.shared_ff_dim;
  const Act hidden = ops_.buffer("hidden", own(ff).count), shared = ops_.buffer("shared", own(hp_.model_dim).count);
  activate_products(spec, hidden, layer.shared_gate, layer.shared_up);
  ops_.matmul(shared, layer.shared_down, gathered("all hidden", ff, own(ff).first, hidden));
  if (!spec.mixture.shared_gate) return shared;
  const Act by = ops_.buffer("shared by", 1);
  ops_.matmul(by, layer.shared_by, h_);
  ops_.sigmoid_gate(shared, by);
  return shared;
}

/// experts(read), chosen by the router of `routed`, and what the shared expert gives.
Act Decoder::mixed(std::int64_t index, Act read, Act routed) {
  const MixtureSpec& mixture = spec_.layers[static_cast<std::size_t>(index)].mixture;
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const Act all = ops_.buffer("mixed", hp_.model_dim), result = own_of("own mixed", all);
  const RowRange hidden = own(mixture.ff_dim);
  exec::Experts experts = layer.experts;
  if (!shard_.whole()) experts.own_hidden = ops_.buffer("hidden of experts", mixture.top_k * hidden.count);
  const Act shared = mixture.shared_ff_dim > 0 ? of_shared_expert(index) : Act();
  ops_.moe(result, read, routed, layer.router, index, experts, hidden.first);
  if (mixture.shared_ff_dim > 0) ops_.add(result, shared);
  if (!shard_.whole()) ops_.gather(all, result, own(hp_.model_dim).first);
  return all;
}

// --- Its weights, in the order in which a pass uses them ---

/// Attention, or what stands in its place.
void Decoder::list_mixer(UnitBuilder& units, int index, LayerWeights& weights) const {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  if (spec.mixer == Mixer::none) return;
  weights.attn_norm = units.vector(layer_tensor(index, "attn_norm.weight"), hp_.model_dim);
  if (spec.mixer == Mixer::delta_net)
    weights.delta_net = list_delta_net(units, index, spec.delta_net, hp_.model_dim);
  else if (spec.mixer == Mixer::mamba2)
    weights.mamba2 = list_mamba2(units, index, spec.mamba2, hp_.model_dim);
  else if (spec.mixer == Mixer::short_convolution)
    weights.short_convolution = list_short_convolution(units, index, spec.short_convolution, hp_.model_dim);
  else if (spec.attention.latent.rank > 0)
    list_latent_attention(units, index, weights);
  else
    list_attention(units, index, weights);
  if (spec.norms_results)
    weights.attn_result_norm = units.vector(layer_tensor(index, "post_attention_norm.weight"), hp_.model_dim);
}

void Decoder::list_attention(UnitBuilder& units, int index, LayerWeights& weights) const {
  const AttentionSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention;
  const std::int64_t dim = hp_.model_dim;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  const std::int64_t q_dim = spec.gated ? 2 * spec.q_dim() : spec.q_dim(), kv_dim = spec.kv_dim();
  const auto heads_of = [&](std::int64_t rows) {
    return RowRange{rows / heads_.count * heads_.index, rows / heads_.count};
  };
  // Some files hold the three as rows of one tensor.
  const RowsOf fused{"attn_qkv", q_dim + 2 * kv_dim, units.has(name("attn_qkv.weight"))};
  const auto product = [&](const char* tensor, std::int64_t first, std::int64_t rows, WeightRef& weight,
                           WeightRef& its_bias) {
    const std::string matrix = name(fmt::format("{}.weight", fused.holds ? fused.tensor : tensor));
    const RowRange own = heads_of(rows);
    const std::int64_t all = fused.holds ? fused.rows : rows, begin = own.first + (fused.holds ? first : 0);
    weight = units.rows(matrix, dim, all, begin, own.count);
    if (!spec.may_have_biases) return;
    const std::string vector = name(fmt::format("{}.bias", fused.holds ? fused.tensor : tensor));
    its_bias = units.optional_elements(vector, all, begin, own.count);
  };
  product("attn_q", 0, q_dim, weights.q, weights.q_bias);
  if (spec.reads < 0) {
    product("attn_k", q_dim, kv_dim, weights.k, weights.k_bias);
    if (!spec.values_are_keys) product("attn_v", q_dim + kv_dim, kv_dim, weights.v, weights.v_bias);
  }
  if (spec.reads >= 0)  // converters leave what was trained and is not used
    for (const char* tensor : {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"}) units.ignore(name(tensor));
  if (spec.norm != HeadNorm::none) {
    const bool each = spec.norm == HeadNorm::each;
    weights.q_norm = units.vector(name("attn_q_norm.weight"), each ? spec.head_dim : spec.q_dim());
    if (spec.reads < 0) weights.k_norm = units.vector(name("attn_k_norm.weight"), each ? spec.head_dim : kv_dim);
  }
  if (spec.sinks) {
    const RowRange heads = heads_of(spec.heads);
    weights.sinks = units.some_elements(name("attn_sinks.weight"), spec.heads, heads.first, heads.count);
  }
  const RowRange rows = own(dim);
  weights.attn_out = units.rows(name("attn_output.weight"), spec.q_dim(), dim, rows.first, rows.count);
  if (spec.may_have_biases)
    weights.attn_out_bias = units.optional_elements(name("attn_output.bias"), dim, rows.first, rows.count);
}

void Decoder::list_latent_attention(UnitBuilder& units, int index, LayerWeights& weights) const {
  const AttentionSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention;
  const LatentSpec& latent = spec.latent;
  const std::int64_t dim = hp_.model_dim;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  const std::string both = name("attn_kv_a_mqa.weight");
  if (latent.q_rank > 0)
    weights.q_low = units.matrix(name("attn_q_a.weight"), dim, latent.q_rank);
  else
    weights.q = units.matrix(name("attn_q.weight"), dim, spec.q_dim());
  weights.latent = units.rows(both, dim, latent.kept(), 0, latent.rank);
  weights.shared_key = units.rows(both, dim, latent.kept(), latent.rank, latent.rotated);
  if (latent.q_rank > 0) {
    weights.q_low_norm = units.vector(name("attn_q_a_norm.weight"), latent.q_rank);
    weights.q = units.matrix(name("attn_q_b.weight"), latent.q_rank, spec.q_dim());
  }
  weights.latent_norm = units.vector(name("attn_kv_a_norm.weight"), latent.rank);
  const std::int64_t k_dim = spec.head_dim - latent.rotated, v_dim = latent.v_dim;
  if (latent.split) {
    weights.k_of_latent = units.matrices(name("attn_k_b.weight"), k_dim, latent.rank, spec.heads);
    weights.v_of_latent = units.matrices(name("attn_v_b.weight"), latent.rank, v_dim, spec.heads);
  } else {
    const std::string heads = name("attn_kv_b.weight");
    weights.k_of_latent = units.rows_of_heads(heads, latent.rank, spec.heads, k_dim + v_dim, 0, k_dim);
    weights.v_of_latent = units.rows_of_heads(heads, latent.rank, spec.heads, k_dim + v_dim, k_dim, v_dim);
  }
  weights.attn_out =
      units.rows(name("attn_output.weight"), spec.heads * latent.v_dim, dim, own(dim).first, own(dim).count);
}

/// Closes the trunk's unit; a mixture's experts are units of their own behind it.
void Decoder::list_feed_forward(UnitBuilder& units, int index, LayerWeights& weights) const {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const std::int64_t dim = hp_.model_dim, ff = spec.ff_dim;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  if (spec.feeds_forward()) weights.ffn_norm = units.vector(name(spec.ffn_norm), dim);
  if (ff > 0) list_dense(units, index, weights);
  if (spec.mixes()) return list_mixture(units, index, weights);
  list_results(units, index, weights);
  units.end();
}

/// What stands behind the layer's feed-forward: its norms, what it adds of the token, and its scale.
void Decoder::list_results(UnitBuilder& units, int index, LayerWeights& weights) const {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  if (spec.norms_results) weights.ffn_result_norm = units.vector(name("post_ffw_norm.weight"), hp_.model_dim);
  if (const std::int64_t each = spec_.per_layer_dim; each > 0) {
    weights.per_layer_gate = units.matrix(name("inp_gate.weight"), hp_.model_dim, each);
    weights.per_layer_out = units.matrix(name("proj.weight"), each, hp_.model_dim);
    weights.per_layer_norm = units.vector(name("post_norm.weight"), hp_.model_dim);
  }
  if (spec.output_scale) weights.output_scale = units.vector(name("layer_output_scale.weight"), 1);
}

void Decoder::list_dense(UnitBuilder& units, int index, LayerWeights& weights) const {
  const std::int64_t dim = hp_.model_dim, ff = spec_.layers[static_cast<std::size_t>(index)].ff_dim;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  const std::string up = name("ffn_up.weight");
  const RowRange of_ff = own(ff), of_dim = own(dim);
  if (!spec_.layers[static_cast<std::size_t>(index)].gated) {
    weights.up = units.rows(up, dim, ff, of_ff.first, of_ff.count);
  } else if (units.has(name("ffn_gate.weight"))) {
    weights.gate = units.rows(name("ffn_gate.weight"), dim, ff, of_ff.first, of_ff.count);
    weights.up = units.rows(up, dim, ff, of_ff.first, of_ff.count);
  } else {  // the gate's rows stand before the others of one tensor
    weights.gate = units.rows(up, dim, 2 * ff, of_ff.first, of_ff.count);
    weights.up = units.rows(up, dim, 2 * ff, ff + of_ff.first, of_ff.count);
  }
  weights.down = units.rows(name("ffn_down.weight"), ff, dim, of_dim.first, of_dim.count);
}

void Decoder::list_mixture(UnitBuilder& units, int index, LayerWeights& weights) const {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const MixtureSpec& mixture = spec.mixture;
  const std::int64_t dim = hp_.model_dim, shared_ff = mixture.shared_ff_dim;
  const RowRange of_ff = own(mixture.ff_dim), of_shared = own(shared_ff), of_dim = own(dim);
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  if (shared_ff > 0) {
    const auto into_hidden = [&](const char* tensor) {
      return units.rows(name(tensor), dim, shared_ff, of_shared.first, of_shared.count);
    };
    if (spec.gated) weights.shared_gate = into_hidden("ffn_gate_shexp.weight");
    weights.shared_up = into_hidden("ffn_up_shexp.weight");
    weights.shared_down = units.rows(name("ffn_down_shexp.weight"), shared_ff, dim, of_dim.first, of_dim.count);
    if (mixture.shared_gate) weights.shared_by = units.vector(name("ffn_gate_inp_shexp.weight"), dim);
  }
  if (mixture.beside_dense) {
    weights.dense_result_norm = units.vector(name("post_ffw_norm_1.weight"), dim);
    weights.router_norm = units.vector(name("ffn_gate_inp.scale"), dim);
    weights.experts_norm = units.vector(name("pre_ffw_norm_2.weight"), dim);
    weights.experts_result_norm = units.vector(name("post_ffw_norm_2.weight"), dim);
  }
  weights.router = units.unscaled(name("ffn_gate_inp.weight"), dim, mixture.experts);
  exec::Experts& experts = weights.experts;
  if (mixture.biases) {
    experts.router_bias = units.vector(name("ffn_gate_inp.bias"), mixture.experts);
    const auto of_each = [&](const char* tensor, std::int64_t size, RowRange rows) {
      return units.some_of_each(name(tensor), size, mixture.experts, rows.first, rows.count);
    };
    experts.gate_bias = of_each("ffn_gate_exps.bias", mixture.ff_dim, of_ff);
    experts.up_bias = of_each("ffn_up_exps.bias", mixture.ff_dim, of_ff);
    experts.down_bias = of_each("ffn_down_exps.bias", dim, of_dim);
  }
  if (mixture.selection_bias) experts.selection_bias = units.vector(name("exp_probs_b.bias"), mixture.experts);
  if (mixture.output_scales) experts.output_scale = units.vector(name("ffn_down_exps.scale"), mixture.experts);
  list_expert_scales(units, index, experts);
  list_results(units, index, weights);
  units.end();
  experts.count = static_cast<std::int32_t>(mixture.experts);
  experts.top_k = static_cast<std::int32_t>(mixture.top_k);
  experts.gating = mixture.gating;
  experts.groups = static_cast<std::int32_t>(mixture.groups);
  experts.group_best = static_cast<std::int32_t>(mixture.group_best);
  experts.groups_used = static_cast<std::int32_t>(mixture.groups_used);
  experts.normalize = mixture.normalize;
  experts.scale = mixture.scale;
  experts.activation = spec.activation;
  experts.first_unit = units.experts(index, mixture.experts, dim, mixture.ff_dim, spec.gated, of_ff, of_dim);
  if (!spec.gated) experts.gate_part = exec::kNoPart, experts.up_part = 0, experts.down_part = 1;
}

/// The numbers that each expert's products are multiplied by, where the file has them. The down's and the up's multiply
/// the expert's weight in the sum instead, being factors of its result, where no bias is between; the gate's cannot,
/// nor can an up's that goes through an activation.
void Decoder::list_expert_scales(UnitBuilder& units, int index, exec::Experts& experts) const {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const bool biases = spec.mixture.biases;
  const auto scale = [&](const char* tensor) {
    return units.optional_vector(layer_tensor(index, tensor), spec.mixture.experts);
  };
  WeightRef& of_down = biases ? experts.down_scale : experts.output_scale;
  if (of_down.none()) of_down = scale("ffn_down_exps.scale");
  if (units.has(layer_tensor(index, "ffn_gate_up_exps.weight"))) return;
  if (spec.gated) (biases ? experts.up_scale : experts.hidden_scale) = scale("ffn_up_exps.scale");
  experts.inner_scale = scale(spec.gated ? "ffn_gate_exps.scale" : "ffn_up_exps.scale");
}

/// The table, and a unit of what is computed before the first layer.
void Decoder::list_for_layers(UnitBuilder& units) {
  const std::int64_t each = spec_.per_layer_dim, all = each * hp_.layers;
  layers_table_ = units.table("per_layer_token_embd.weight", all, hp_.vocab);
  units.begin(UnitKind::trunk);
  layers_projection_ = units.matrix("per_layer_model_proj.weight", hp_.model_dim, all);
  layers_norm_ = units.vector("per_layer_proj_norm.weight", each);
  units.end();
}

Status Decoder::list_units(const modelfile::Model& file, residency::UnitTable& table) {
  UnitBuilder units(file, table);
  // A shard's head is rows of the table, in a unit of its own.
  const bool as_head = ends() && units.ties_head() && shard_.whole();
  if (begins() || as_head) embedding_ = units.embedding(hp_.model_dim, hp_.vocab, as_head);
  if (spec_.per_layer_dim > 0) list_for_layers(units);
  layers_.resize(static_cast<std::size_t>(stage_.last));
  for (auto index = static_cast<int>(stage_.first); index < stage_.last && units.status().ok(); ++index) {
    LayerWeights& weights = layers_[static_cast<std::size_t>(index)];
    units.begin(UnitKind::trunk, index);
    list_mixer(units, index, weights);
    list_feed_forward(units, index, weights);
    units.refuse_unused(index);
  }
  if (ends() && shard_.whole())
    std::tie(output_norm_, head_) = units.output(spec_.output_norm, hp_.model_dim, hp_.vocab, embedding_);
  else if (ends())
    std::tie(output_norm_, head_) =
        units.output_rows(spec_.output_norm, hp_.model_dim, hp_.vocab, own(hp_.vocab).first, own(hp_.vocab).count);
  scales_ = units.scales();
  return units.status();
}

Status Decoder::list_draft_block(const modelfile::Model& file, residency::UnitTable& table) {
  UnitBuilder units(file, table);
  units.begin_aside();
  const auto index = static_cast<int>(hp_.layers);
  const std::int64_t dim = hp_.model_dim;
  const auto name = [&](std::string_view tensor) {
    return layer_tensor(index, fmt::format("nextn.{}.weight", tensor));
  };
  const bool own_embedding = units.has(name("embed_tokens"));
  draft_.embedding = own_embedding ? units.table(name("embed_tokens"), dim, hp_.vocab) : embedding_;
  LayerWeights& weights = layers_.emplace_back();
  units.begin(UnitKind::trunk, index);
  draft_.embedding_norm = units.vector(name("enorm"), dim);
  draft_.states_norm = units.vector(name("hnorm"), dim);
  draft_.joined = units.matrix(name("eh_proj"), 2 * dim, dim);
  draft_.norm = units.has(name("shared_head_norm")) ? units.vector(name("shared_head_norm"), dim) : output_norm_;
  draft_.head = units.has(name("shared_head_head")) ? units.matrix(name("shared_head_head"), dim, hp_.vocab) : head_;
  list_mixer(units, index, weights);
  list_feed_forward(units, index, weights);
  units.refuse_unused(index);
  scales_.insert(scales_.end(), units.scales().begin(), units.scales().end());
  return units.status();
}

std::vector<residency::Unit> Decoder::list_draft_blocks(const modelfile::Model& file, std::int64_t first) const {
  residency::UnitTable none;
  const UnitBuilder units(file, none);
  std::vector<residency::Unit> blocks;
  for (std::int64_t index = hp_.layers + first; index < hp_.layers + hp_.draft_blocks; ++index)
    if (residency::Unit block = units.block_apart(static_cast<int>(index)); !block.parts.empty())
      blocks.push_back(std::move(block));
  return blocks;
}

/// The layer of the block that guesses: as the last one that attends.
Expected<LayerSpec> draft_spec(const modelfile::Model& file, const Hyperparameters& hp, const DecoderSpec& spec) {
  if (hp.draft_blocks == 0 || file.find(layer_tensor(static_cast<int>(hp.layers), "nextn.eh_proj.weight")) == nullptr)
    return error(Code::unsupported,
                 "the file has no block that was trained to guess more tokens (multi-token prediction)");
  const auto last = std::find_if(spec.layers.rbegin(), spec.layers.rend(), [](const LayerSpec& layer) {
    return layer.mixer == Mixer::attention && layer.attention.reads < 0;
  });
  if (last == spec.layers.rend() || spec.per_layer_dim > 0)
    return error(Code::unsupported, "this version has no such block of models of {}", hp.architecture);
  return *last;
}

/// Whether every feed-forward can be cut into shards.
Status check_shard(const Shard& shard, const Hyperparameters& hp, const DecoderSpec& spec) {
  if (shard.whole()) return {};
  if (shard.index < 0 || shard.index >= shard.count)
    return error(Code::internal, "shard {} of {} is none", shard.index, shard.count);
  std::int64_t least = std::min(hp.model_dim, hp.vocab);
  for (const LayerSpec& layer : spec.layers)
    for (const std::int64_t width : {layer.ff_dim, layer.mixture.ff_dim, layer.mixture.shared_ff_dim})
      if (width > 0) least = std::min(least, width);
  if (least / kShardStep >= shard.count) return {};
  return error(Code::unsupported, "this model's rows cannot be shared out to {} GPUs: one of its matrices has only {}",
               shard.count, least);
}

/// The stage with its last layer named.
Expected<Stage> check_stage(const Stage& stage, const Hyperparameters& hp, const DecoderSpec& spec) {
  if (stage.whole()) return Stage{0, hp.layers};
  const Stage named{stage.first, stage.last == 0 ? hp.layers : stage.last};
  if (named.first < 0 || named.first >= named.last || named.last > hp.layers)
    return error(Code::invalid_argument, "layers {} to {} are no stage of a model of {} layers", named.first,
                 named.last - 1, hp.layers);
  if (spec.per_layer_dim > 0)
    return error(Code::unsupported,
                 "models of {} cannot be cut into stages: each layer adds an embedding of its own of every token",
                 hp.architecture);
  for (std::int64_t index = named.first; index < named.last; ++index) {
    const LayerSpec& layer = spec.layers[static_cast<std::size_t>(index)];
    const std::int64_t reads = layer.mixer == Mixer::attention ? layer.attention.reads : -1;
    if (reads >= 0 && reads < named.first)
      return error(Code::unsupported,
                   "no stage may begin with layer {}: layer {} reads the keys and values of layer {} before it",
                   named.first, index, reads);
  }
  return named;
}

}  // namespace

Expected<std::unique_ptr<Model>> make_decoder(const modelfile::Model& file, const LoadOptions& options,
                                              Hyperparameters hp, const DecoderSpec& spec) {
  exec::Ops ops;
  residency::UnitTable units;
  DecoderSpec all = spec;
  MR_ASSIGN_OR_RETURN(const Stage stage, check_stage(options.stage, hp, spec));
  MR_RETURN_IF_ERROR(check_shard(options.shard, hp, spec));
  if (options.draft_block) {
    if (!options.stage.whole() || !options.shard.whole())
      return error(Code::unsupported,
                   "the block that guesses more tokens works with the whole model, not with parts of it");
    MR_ASSIGN_OR_RETURN(const LayerSpec block, draft_spec(file, hp, spec));
    all.layers.push_back(block);
  }
  Decoder decoder(hp, all, stage, options.shard, ops);
  MR_RETURN_IF_ERROR(decoder.list_units(file, units));
  decoder.record();
  MR_ASSIGN_OR_RETURN(exec::Program program, ops.finish());
  std::optional<exec::Program> draft;
  if (options.draft_block) {
    MR_RETURN_IF_ERROR(decoder.list_draft_block(file, units));
    ops = exec::Ops();
    decoder.record_draft();
    MR_ASSIGN_OR_RETURN(draft.emplace(), ops.finish());
  }
  units.cut(options.tile_bytes);
  std::vector<residency::Unit> draft_blocks = decoder.list_draft_blocks(file, options.draft_block ? 1 : 0);
  return std::make_unique<Model>(std::move(hp), std::move(units), std::move(program), std::move(draft_blocks),
                                 std::move(draft), options.stage);
}

}  // namespace millrace::model

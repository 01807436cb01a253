// The steps of each layer, and of what stands around them.
#include <fmt/format.h>

#include <cmath>

#include "model/decoder_impl.h"

namespace millrace::model {

using exec::Rows;

void Decoder::begin_program(std::span<const kv::LayerKv> kept) {
  x_ = ops_.buffer("x", hp_.model_dim, Rows::whole);
  h_ = ops_.buffer("h", hp_.model_dim);
  ops_.keep(kv::Layout(kept));
  for (const auto& [weight, scale] : scales_) ops_.scale_products(weight, scale);
  for (const RopeSpec& rope : spec_.ropes)
    ops_.add_rope({rope.inv_freq, rope.rotary, rope.neox, rope.magnitude, rope.last, rope.axes, rope.offset});
}

/// What follows the layers.
void Decoder::end_program(const OutputWeights& output) {
  ops_.begin_layer();
  if (spec_.streams > 1) merge_streams();
  ops_.begin_block();
  if (!spec_.head) {
    if (!output.norm.none()) normalize(x_, x_, output.norm, output.norm_bias);
    if (spec_.dense_dim > 0) {  // being linear, they give of a mean what they give of its states in the mean
      const Act wide = ops_.buffer("dense", spec_.dense_dim);
      ops_.matmul(wide, dense_up_, x_);
      ops_.matmul(x_, dense_down_, wide);
    }
    return ops_.hidden(x_);
  }
  const Act last = ops_.buffer("last", hp_.model_dim, Rows::logits);
  ops_.select_logit_rows(last, x_);
  ops_.begin_hidden();
  if (!spec_.bare_states && !output.norm.none()) normalize(x_, x_, output.norm, output.norm_bias);
  ops_.hidden(x_);
  ops_.end_hidden();
  if (!output.norm.none()) normalize(last, last, output.norm, output.norm_bias);
  if (shard_.whole()) return ops_.logits(output.head, output.head_bias, last, spec_.logit_scale, spec_.logit_cap);
  const RowRange rows = own(hp_.vocab);
  ops_.gather_logits(output.head, output.head_bias, ops_.buffer("own logits", rows.count, Rows::logits), last,
                     rows.first, hp_.vocab, spec_.logit_scale, spec_.logit_cap);
}

/// What follows the layers of a stage that others follow: in every pass, not only in those whose states are wanted.
void Decoder::hand_over() {
  ops_.begin_layer();
  ops_.hidden(x_);
}

void Decoder::record() {
  std::vector<kv::LayerKv> kept(static_cast<std::size_t>(stage_.first), {.keeps = kv::Keeps::nothing});
  for (std::int64_t index = stage_.first; index < stage_.last; ++index) kept.push_back(kept_here(index));
  besides_.assign(static_cast<std::size_t>(stage_.last), 0);
  for (std::int64_t index = stage_.first; index < stage_.last; ++index) {
    besides_[static_cast<std::size_t>(index)] = std::ssize(kept);
    const std::vector<kv::LayerKv> more = spec_.layers[static_cast<std::size_t>(index)].kept_besides();
    kept.insert(kept.end(), more.begin(), more.end());
  }
  if (spec_.ngrams.layer >= 0) {
    ngrams_besides_ = std::ssize(kept);
    const std::vector<kv::LayerKv> more = spec_.ngrams.kept(spec_.streams * hp_.model_dim);
    kept.insert(kept.end(), more.begin(), more.end());
  }
  begin_program(kept);
  if (begins())
    embed();
  else
    ops_.given(x_);
  if (spec_.per_layer_dim > 0) embed_for_layers();
  if (spec_.streams > 1) open_streams();
  for (std::int64_t index = stage_.first; index < stage_.last; ++index) {
    tap(index);
    ops_.begin_layer();
    if (index == spec_.ngrams.layer) add_ngrams(index);
    mix_tokens(index);
    if (spec_.layers[static_cast<std::size_t>(index)].feeds_forward()) feed_forward(index);
    if (const LayerWeights& layer = layers_[static_cast<std::size_t>(index)]; !layer.control_sum.none())
      ops_.scale(x_, layer.control_one, layer.control_sum);
    if (index < hp_.deepstack_layers) ops_.add_picture(x_, h_, (1 + index) * hp_.model_dim);
  }
  if (ends()) {
    tap(stage_.last);
    end_program(output_);
  } else {
    hand_over();
  }
}

/// Keeps what this layer reads, where a head that guesses wants it.
void Decoder::tap(std::int64_t index) {
  for (std::size_t number = 0; number < spec_.taps.size(); ++number) {
    if (spec_.taps[number] != index) continue;
    const Act kept = ops_.buffer(fmt::format("tap {}", number), hp_.model_dim, Rows::whole);
    ops_.begin_hidden();
    ops_.copy(kept, x_);
    ops_.tap(static_cast<std::int64_t>(number), kept);
    ops_.end_hidden();
  }
}

/// x = norm(embedding of the token + embedding of its position + that of its type), or what of this the model has.
void Decoder::embed() {
  ops_.embed_with_pictures(x_, embedding_, spec_.embedding_scale);
  Act more;
  if (spec_.position_table || spec_.pair_types) more = ops_.buffer("more of the embedding", hp_.model_dim, Rows::whole);
  if (spec_.position_table) {
    ops_.embed_positions(more, positions_);
    ops_.add(x_, more);
  }
  if (spec_.pair_types) {
    ops_.embed_types(more, token_type_);
    ops_.add(x_, more);
  } else if (spec_.token_types) {
    ops_.add_vector(x_, token_type_);
  }
  if (spec_.embedding_norm) normalize(x_, x_, embedding_norm_, embedding_norm_bias_);
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
  end_program({draft_.norm, {}, draft_.head, {}});
}

/// A layer over [norm(embedding of the token) | norm(states)], then the head. Source: EAGLE-3 (arXiv:2503.01840).
void Decoder::record_draft_head() {
  const kv::LayerKv kept = spec_.layers.front().kept();
  begin_program(std::span(&kept, 1));
  ops_.embed(ops_.buffer("embedded", hp_.model_dim, Rows::whole), draft_.embedding);
  ops_.given(x_);
  ops_.begin_layer();
  mix_tokens(0);
  feed_forward(0);
  end_program({draft_.norm, {}, draft_.head, {}});
}

/// The states that the head reads, of what the model's layers read: W [taps], which may be normalised as one.
void Decoder::record_fusion(std::int64_t tap_dim) {
  const Act taps = ops_.buffer("taps", tap_dim, Rows::whole), fused = ops_.buffer("x", hp_.model_dim, Rows::whole);
  for (const auto& [weight, scale] : scales_) ops_.scale_products(weight, scale);
  ops_.given(taps);
  if (!draft_.states_norm.none()) ops_.rms_norm(taps, taps, draft_.states_norm, eps());
  ops_.matmul(fused, draft_.joined, taps);
  ops_.hidden(fused);
}

/// x = W [embedding of the token | states], layers over the model's keys and values, then the head; and of the final
/// states, by another matrix, what stands in the model's place.
void Decoder::record_assistant(const Decoder& target) {
  std::vector<kv::LayerKv> kept;
  for (std::int64_t index = 0; index < target.hp_.layers; ++index) kept.push_back(target.kept_here(index));
  over_model_ = true;
  begin_program(kept);
  const std::int64_t dim = target.hp_.model_dim;
  const Act embedded = ops_.buffer("embedded", dim, Rows::whole), states = ops_.buffer("states", dim, Rows::whole),
            joined = ops_.buffer("joined", 2 * dim);
  ops_.embed(embedded, draft_.embedding, spec_.embedding_scale);
  ops_.given(states);
  ops_.join(joined, embedded, states);
  ops_.matmul(x_, draft_.joined, joined);
  for (std::int64_t index = 0; index < hp_.layers; ++index) {
    ops_.begin_layer();
    mix_tokens(index);
    feed_forward(index);
  }
  ops_.begin_layer();
  ops_.begin_block();
  const Act last = ops_.buffer("last", hp_.model_dim, Rows::logits),
            given_back = ops_.buffer("given back", dim, Rows::whole);
  ops_.select_logit_rows(last, x_);
  ops_.begin_hidden();
  ops_.rms_norm(x_, x_, draft_.norm, eps());
  ops_.matmul(given_back, draft_.given_back, x_);
  ops_.hidden(given_back);
  ops_.end_hidden();
  ops_.rms_norm(last, last, draft_.norm, eps());
  ops_.logits(draft_.head, {}, last);
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

/// x += mixer(norm(x)), with what keeps a state in attention's place, or compressed attention.
void Decoder::remember(std::int64_t index) {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  ops_.begin_block();
  if (connects()) read_streams(layer.mixer_weigher);
  read_stream(spec, layer.attn_norm, layer.attn_norm_bias);
  if (spec.mixer == Mixer::compressed_attention)
    record_compressed_attention(ops_, index, spec.compressed, layer.compressed,
                                besides_[static_cast<std::size_t>(index)], h_, eps());
  else if (spec.mixer == Mixer::delta_net)
    record_delta_net(ops_, index, spec.delta_net, layer.delta_net, h_, eps());
  else if (spec.mixer == Mixer::mamba)
    record_mamba(ops_, index, spec.mamba, layer.mamba, h_, eps());
  else if (spec.mixer == Mixer::mamba2)
    record_mamba2(ops_, index, spec.mamba2, layer.mamba2, h_, eps());
  else
    record_short_convolution(ops_, index, spec.short_convolution, layer.short_convolution, h_);
  add_result(spec, h_, layer.attn_result_norm);
}

/// By the kind of norm that the model has.
void Decoder::normalize(Act out, Act x, WeightRef norm, WeightRef bias) {
  if (spec_.layer_norms) return ops_.layer_norm(out, x, norm, bias, eps());
  ops_.rms_norm(out, x, norm, eps());
}

/// h = norm(x), or x where nothing normalises what is read.
void Decoder::read_stream(const LayerSpec& spec, WeightRef norm, WeightRef bias) {
  if (!spec.norms_inputs || norm.none()) return ops_.copy(h_, x_);
  normalize(h_, x_, norm, bias);
}

/// h, or behind the token's embedding.
Act Decoder::read_by_attention(std::int64_t index) {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  if (spec.token_norm == nullptr) return h_;
  const Act token = ops_.buffer("token", hp_.model_dim), joined = ops_.buffer("token and state", 2 * hp_.model_dim);
  ops_.rms_norm(token, ops_.buffer("embedded", hp_.model_dim, Rows::whole),
                layers_[static_cast<std::size_t>(index)].token_norm, eps());
  ops_.join(joined, token, h_);
  if (spec.adds_to_norm) ops_.copy(x_, h_);
  return joined;
}

/// Queries, and keys where the layer has its own.
void Decoder::normalize_heads(std::int64_t index, Act q, Act k) {
  const AttentionSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention;
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const bool own = spec.reads < 0;
  if (spec.norm == HeadNorm::each) {
    ops_.rms_norm_heads(q, layer.q_norm, spec.head_dim, eps());
    if (own) ops_.rms_norm_heads(k, layer.k_norm, spec.head_dim, eps());
  } else if (spec.norm == HeadNorm::bare) {
    ops_.rms_norm_heads(q, {}, spec.head_dim, eps());
    if (own) ops_.rms_norm_heads(k, {}, spec.head_dim, eps());
  } else if (spec.norm == HeadNorm::together) {
    ops_.rms_norm(q, q, layer.q_norm, eps());
    if (own) ops_.rms_norm(k, k, layer.k_norm, eps());
  }
}

/// ALiBi's, of this shard's heads. Source: Press et al. (arXiv:2108.12409).
std::vector<float> Decoder::slopes(const AttentionSpec& spec, std::int64_t heads) const {
  std::vector<float> slopes;
  if (spec.max_bias == 0) return slopes;
  std::int64_t even = 1;  // the largest power of 2 that is not more than the heads
  while (2 * even <= spec.heads) even *= 2;
  for (std::int64_t i = 0, head = heads * heads_.index; i < heads; ++i, ++head) {
    const bool between = head >= even;  // the rest's lie between those of twice as many
    const auto step = static_cast<float>(between ? 2 * (head - even) + 1 : head + 1);
    slopes.push_back(std::exp2(-spec.max_bias * step / static_cast<float>(between ? 2 * even : even)));
  }
  return slopes;
}

/// x += W_out (gate * attention(rope(norm(W_q h)), rope(norm(W_k h)), W_v h)), where h = norm(x); mostly without a
/// gate.
void Decoder::attend(std::int64_t index) {
  const AttentionSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention;
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const std::int64_t heads = own_heads(spec.heads), kv_heads = own_heads(spec.kv_heads);
  const std::int64_t q_dim = heads * spec.head_dim, kv_dim = kv_heads * spec.head_dim, out_dim = heads * spec.v_dim();
  const Act q = ops_.buffer("q", q_dim), k = ops_.buffer("k", kv_dim), v = ops_.buffer("v", kv_heads * spec.v_dim());
  const Act attended = ops_.buffer("attended", out_dim);
  const Act head_gate = spec.gates_heads ? ops_.buffer("gates of heads", heads) : Act();
  const bool gated = spec.gated || spec.own_gate;
  const Act gate = gated ? ops_.buffer("gate", q_dim) : Act();
  const Act q_made = spec.gated ? ops_.buffer("q and gate", 2 * q_dim) : q;
  const exec::Product qkv[] = {{q_made, layer.q, layer.q_bias}, {k, layer.k, layer.k_bias}, {v, layer.v, layer.v_bias}};
  const bool own = spec.reads < 0;  // keys and values

  ops_.begin_block();
  if (predicts()) predict_streams(index);
  if (connects()) read_streams(layer.mixer_weigher);
  read_stream(spec_.layers[static_cast<std::size_t>(index)], layer.attn_norm, layer.attn_norm_bias);
  const Act beside = layer.laurel_down.none() ? Act() : laurel(index);
  ops_.matmul(std::span(qkv).first(!own ? 1 : spec.values_are_keys ? 2 : 3), read_by_attention(index));
  if (spec.own_gate) ops_.matmul(gate, layer.attn_gate, h_);
  if (spec.gated) {
    ops_.pick_heads(q, q_made, heads, spec.head_dim, 0);
    ops_.pick_heads(gate, q_made, heads, spec.head_dim, spec.head_dim);
  }
  if (spec.gates_heads) ops_.matmul(head_gate, layer.head_gate, h_);
  if (own && spec.values_are_keys) ops_.copy(v, k);
  if (!spec.norms_rotated) normalize_heads(index, q, k);
  if (own && spec.norms_values) ops_.rms_norm_heads(v, {}, spec.v_dim(), eps());
  if (spec.temperature.scale != 0) ops_.temper(q, spec.temperature);
  if (spec.rope != kNoRope) ops_.rope(q, heads, spec.head_dim, spec.rope);
  if (own && spec.rope != kNoRope) ops_.rope(k, kv_heads, spec.head_dim, spec.rope);
  if (spec.norms_rotated) normalize_heads(index, q, k);
  if (own) ops_.store_kv(index, k, v);
  const exec::Indexer& indexer = spec.index.indexer;
  const Act chosen = chosen_by_heads(index);
  exec::Attention attention = {heads,
                               kv_heads,
                               spec.head_dim,
                               spec.scale,
                               spec.window,
                               layer.sinks,
                               0,
                               spec.value_dim,
                               indexer.keys(),
                               spec.score_cap,
                               slopes(spec, heads),
                               spec.causal,
                               false,
                               spec.whole_pictures,
                               spec.chunks,
                               -1,
                               indexer.block};
  if (spec.index.pools()) {
    attention.selected_block = indexer.ratio;
    attention.selected = indexer.top_k * indexer.ratio;
    attention.sees_tail = true;
  }
  ops_.attention(attended, q, over_model_ ? spec.reads : index, attention, chosen);
  if (spec.value_scale != 1) ops_.scale(attended, spec.value_scale);
  if (const Act by = gated ? gate : head_gate; spec.softplus_gates)
    ops_.softplus_gate(attended, by);
  else if (gated || spec.gates_heads)
    ops_.sigmoid_gate(attended, by);
  const Act all =
      heads_.whole() ? attended : gathered("all attended", spec.heads * spec.v_dim(), out_dim * heads_.index, attended);
  if (const LayerSpec& whole = spec_.layers[static_cast<std::size_t>(index)]; whole.parallel || whole.scans) {
    const Act given = ops_.buffer("of attention", hp_.model_dim);
    project(given, layer.attn_out, layer.attn_out_bias, all);
    if (whole.parallel) return;  // the feed-forward reads the same, and adds both
    record_mamba2(ops_, besides_[static_cast<std::size_t>(index)], whole.mamba2, layer.mamba2, h_, eps());
    ops_.add(x_, given);
    return add_result(whole, h_, {});
  }
  project(h_, layer.attn_out, layer.attn_out_bias, all);
  add_result(spec_.layers[static_cast<std::size_t>(index)], h_, layer.attn_result_norm);
  if (!layer.attn_sum_norm.none()) normalize(x_, x_, layer.attn_sum_norm, layer.attn_sum_bias);
  if (layer.laurel_down.none()) return;
  ops_.add(x_, beside);
  ops_.scale(x_, std::sqrt(0.5f));
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
  const Act gate = spec.gates_heads ? ops_.buffer("gates of heads", spec.heads) : Act();
  const exec::Product products[] = {
      {low, latent.q_rank > 0 ? layer.q_low : layer.q, {}}, {c, layer.latent, {}}, {key, layer.shared_key, {}}};

  // The norms of latents have one of their own, whatever the model's other norms have (transformers'
  // DeepseekV3RMSNorm).
  constexpr float kLatentEps = 1e-6f;
  ops_.begin_block();
  if (connects()) read_streams(layer.mixer_weigher);
  ops_.rms_norm(h_, x_, layer.attn_norm, eps());
  ops_.matmul(products, h_);
  if (spec.gates_heads) ops_.matmul(gate, layer.head_gate, h_);
  if (latent.q_rank > 0) {
    ops_.rms_norm(low, low, layer.q_low_norm, kLatentEps);
    ops_.matmul(q, layer.q, low);
  }
  if (spec.temperature.scale != 0) ops_.temper(q, spec.temperature);
  ops_.rms_norm(c, c, layer.latent_norm, kLatentEps);
  ops_.rope(key, 1, latent.rotated, spec.rope);
  ops_.store_latent(index, c, key);
  ops_.rope(q, spec.heads, spec.head_dim, spec.rope);
  const std::int64_t top_k = spec.index.indexer.top_k;
  const Act chosen = top_k > 0 ? selected(index, low) : Act();
  ops_.matmul_heads(query, layer.k_of_latent, q, spec.heads, {!latent.split, !latent.split});
  ops_.attention(sums, query, index, {spec.heads, 1, latent.kept(), spec.scale, spec.window, {}, latent.rank, 0, top_k},
                 chosen);
  ops_.matmul_heads(attended, layer.v_of_latent, sums, spec.heads, {!latent.split, false});
  if (spec.gates_heads) ops_.sigmoid_gate(attended, gate);
  project(h_, layer.attn_out, {}, attended);
  add_result(spec_.layers[static_cast<std::size_t>(index)], h_, {});
}

/// The positions that the layer's attention sees: chosen here, or by the last layer that chose. low: the queries'
/// latent; h still is the layer's input.
Act Decoder::selected(std::int64_t index, Act low) {
  const IndexerSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention.index;
  const exec::Indexer& indexer = spec.indexer;
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const Act chosen = ops_.buffer("selected", indexer.top_k, Rows::whole);
  if (!spec.own) return chosen;
  const Act q = ops_.buffer("index q", indexer.heads * indexer.head_dim),
            k = ops_.buffer("index key", indexer.head_dim), weights = ops_.buffer("index weights", indexer.heads);
  constexpr float kIndexEps = 1e-6f;  // of its own, as latents' is
  const exec::Product products[] = {{k, layer.index_k, {}}, {weights, layer.index_weights, {}}};
  ops_.matmul(q, layer.index_q, low);
  ops_.matmul(products, h_);
  ops_.layer_norm(k, k, layer.index_norm, layer.index_bias, kIndexEps);
  ops_.rope(q, indexer.heads, indexer.head_dim, spec.rope);
  ops_.rope(k, 1, indexer.head_dim, spec.rope);
  ops_.store_index(index, k);
  ops_.scale(weights, 1.0f / std::sqrt(static_cast<float>(indexer.heads * indexer.head_dim)));
  ops_.select(chosen, q, weights, index, indexer);
  return chosen;
}

/// The same of blocks, for each KV head; h still is the layer's input.
Act Decoder::selected_blocks(std::int64_t index) {
  const IndexerSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention.index;
  const exec::Indexer& indexer = spec.indexer;
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const Act chosen = ops_.buffer("selected", indexer.choices(), Rows::whole),
            q = ops_.buffer("index q", indexer.heads * indexer.head_dim),
            k = ops_.buffer("index key", indexer.head_dim);
  const exec::Product products[] = {{q, layer.index_q, {}}, {k, layer.index_k, {}}};
  ops_.matmul(products, h_);
  ops_.rms_norm_heads(q, layer.index_q_norm, indexer.head_dim, eps());
  ops_.rms_norm_heads(k, layer.index_norm, indexer.head_dim, eps());
  ops_.rope(q, indexer.heads, indexer.head_dim, spec.rope);
  ops_.rope(k, 1, indexer.head_dim, spec.rope);
  ops_.store_index(index, k);
  ops_.select(chosen, q, {}, index, indexer);
  return chosen;
}

/// What attention over keys and values sees; nothing where it sees all.
Act Decoder::chosen_by_heads(std::int64_t index) {
  const IndexerSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention.index;
  if (spec.indexer.top_k == 0) return {};
  return spec.pools() ? selected_pools(index) : selected_blocks(index);
}

/// Blocks of tokens, by the mean of their keys; h still is the layer's input.
Act Decoder::selected_pools(std::int64_t index) {
  const IndexerSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention.index;
  const exec::Indexer& indexer = spec.indexer;
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const std::int64_t besides = besides_[static_cast<std::size_t>(index)];
  const Act chosen = ops_.buffer("selected", indexer.top_k),
            q = ops_.buffer("index q", indexer.heads * indexer.head_dim),
            k = ops_.buffer("index key", indexer.head_dim);
  const exec::Product products[] = {{q, layer.index_q, {}}, {k, layer.index_k, {}}};
  ops_.matmul(products, h_);
  ops_.rms_norm_heads(q, layer.index_q_norm, indexer.head_dim, eps());
  ops_.rope(q, indexer.heads, indexer.head_dim, spec.rope);
  exec::Compressor keys = spec.compressor(eps());
  keys.inputs = besides + 1;
  ops_.compress(k, {}, besides, layer.index_norm, {}, keys);
  ops_.select(chosen, q, {}, besides, indexer);
  return chosen;
}

/// `own` itself, or where it is a shard's, what all made.
Act Decoder::gathered(const std::string& name, std::int64_t cols, std::int64_t first, Act own) {
  if (shard_.whole()) return own;
  const Act all = ops_.buffer(name, cols);
  ops_.gather(all, own, first);
  return all;
}

/// Where a shard's columns of `all`, of `cols` in all, are made; `all` itself where nothing is cut.
Act Decoder::own_of(const std::string& name, Act all, std::int64_t cols) {
  return shard_.whole() ? all : ops_.buffer(name, own(cols).count);
}

/// out = W x (+ b).
void Decoder::project(Act out, WeightRef weight, WeightRef bias, Act x) {
  const RowRange rows = own(hp_.model_dim);
  const exec::Product product{own_of("own h", out, hp_.model_dim), weight, bias};
  ops_.matmul(std::span(&product, 1), x);
  if (!shard_.whole()) ops_.gather(out, product.out, rows.first);
}

/// x += residual_scale * result, which may be normalised first; or connected streams take it.
void Decoder::add_result(const LayerSpec& spec, Act result, WeightRef norm) {
  if (spec.norms_results) ops_.rms_norm(result, result, norm, eps());
  if (connects()) return write_streams(result);
  ops_.add(x_, result, spec.residual_scale);
}

/// hidden = act(W_gate h) * W_up h, or act(W_up h). The gate may keep a few of its channels alone.
void Decoder::activate_products(const LayerSpec& spec, Act hidden, WeightRef gate, WeightRef up, WeightRef up_bias) {
  if (spec.gated && spec.limit > 0) return ops_.matmul_gated(hidden, gate, up, h_, spec.limits, spec.limit);
  if (spec.gated && spec.gate_deviations > 0) {
    const Act factors = ops_.buffer("ups", ops_.cols(hidden));
    const exec::Product both[] = {{hidden, gate, {}}, {factors, up, {}}};
    ops_.matmul(both, h_);
    ops_.statistical_top_k(hidden, spec.gate_deviations);
    return ops_.gate(hidden, factors, 0, spec.activation);
  }
  if (spec.gated) return ops_.matmul_gated(hidden, gate, up, h_, spec.activation);
  const exec::Product product{hidden, up, up_bias};
  ops_.matmul(std::span(&product, 1), h_);
  if (spec.xielu) return ops_.activate(hidden, *spec.xielu);
  ops_.activate(hidden, spec.activation);
}

/// x += W_down (act(W_gate h) * W_up h), where h = norm(x); or the router's mixture of such networks, or both.
void Decoder::feed_forward(std::int64_t index) {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  if (!spec.parallel) ops_.begin_block();
  if (connects()) read_streams(layer.feed_forward_weigher);
  if (!spec.parallel || !layer.ffn_norm.none()) read_stream(spec, layer.ffn_norm, layer.ffn_norm_bias);
  if (spec.ff_dim > 0) {
    const RowRange rows = own(spec.ff_dim);
    const Act hidden = ops_.buffer("hidden", rows.count);
    activate_products(spec, hidden, layer.gate, layer.up, layer.up_bias);
    project(h_, layer.down, layer.down_bias, gathered("all hidden", spec.ff_dim, rows.first, hidden));
  }
  if (spec.parallel) ops_.add(x_, ops_.buffer("of attention", hp_.model_dim), spec.residual_scale);
  if (!spec.mixes())
    add_result(spec, h_, layer.ffn_result_norm);
  else if (spec.mixture.beside_dense)
    mix_beside(index);
  else
    mix(index);
  if (!layer.ffn_sum_norm.none()) normalize(x_, x_, layer.ffn_sum_norm, layer.ffn_sum_bias);
  if (predicts()) correct_streams(index);
  if (spec_.per_layer_dim > 0) add_of_layer(index);
  if (spec.output_scale) ops_.scale(x_, layer.output_scale);
}

/// x += norm(W_out (act(W_gate x) * e)), e being what the layer has of the token. Of several streams it reads the
/// first, scaled, and adds to the others.
void Decoder::add_of_layer(std::int64_t index) {
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const Act gated = ops_.buffer("of layer", spec_.per_layer_dim);
  if (spec_.streams > 1) {
    ops_.pick_heads(h_, streams_, 1, hp_.model_dim, 0);
    ops_.standardize(h_, {}, layer.streams.first_scale);
  }
  ops_.matmul(gated, layer.per_layer_gate, spec_.streams > 1 ? h_ : x_);
  ops_.gate(gated, of_layers_, index, spec_.layers[static_cast<std::size_t>(index)].activation);
  ops_.matmul(h_, layer.per_layer_out, gated);
  ops_.rms_norm(h_, h_, layer.per_layer_norm, eps());
  if (spec_.streams > 1) return ops_.add_streams(streams_, h_, {}, hp_.model_dim, 1, 1);
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

/// What experts read, times the sigmoid of the score of the one that is chosen: the largest. The router is multiplied
/// once more, being small.
Act Decoder::weighed(std::int64_t index, Act read) {
  const Act scores = ops_.buffer("scores of experts", layers_[static_cast<std::size_t>(index)].experts.count);
  const Act best = ops_.buffer("best score", 1), result = ops_.buffer("weighed", hp_.model_dim);
  ops_.matmul(scores, layers_[static_cast<std::size_t>(index)].input_router, read);
  ops_.largest(best, scores);
  ops_.copy(result, read);
  ops_.sigmoid_gate(result, best);
  return result;
}

/// experts(read), chosen by the router of `routed`, and what the shared expert gives.
Act Decoder::mixed(std::int64_t index, Act read, Act routed) {
  const MixtureSpec& mixture = spec_.layers[static_cast<std::size_t>(index)].mixture;
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const Act all = ops_.buffer("mixed", hp_.model_dim), result = own_of("own mixed", all, hp_.model_dim);
  const RowRange hidden = own(mixture.ff_dim);
  exec::Experts experts = layer.experts;
  if (!shard_.whole()) experts.own_hidden = ops_.buffer("hidden of experts", mixture.top_k * hidden.count);
  const Act shared = mixture.shared_ff_dim > 0 ? of_shared_expert(index) : Act();
  if (mixture.weighs_inputs) read = weighed(index, read);
  if (const std::int64_t low = mixture.latent_dim; low == 0) {
    ops_.moe(result, read, routed, layer.router, index, experts, hidden.first);
  } else {  // experts read and give fewer channels; their sum is widened once
    const Act narrow = ops_.buffer("read by experts", low), sum = ops_.buffer("sum of experts", low);
    const Act own_narrow = own_of("own read by experts", narrow, low), own_sum = own_of("own sum of experts", sum, low);
    ops_.matmul(own_narrow, layer.latent_down, read);
    if (!shard_.whole()) ops_.gather(narrow, own_narrow, own(low).first);
    ops_.moe(own_sum, narrow, routed, layer.router, index, experts, hidden.first);
    if (!shard_.whole()) ops_.gather(sum, own_sum, own(low).first);
    ops_.matmul(result, layer.latent_up, sum);
  }
  if (mixture.shared_ff_dim > 0) ops_.add(result, shared);
  if (mixture.sum_scale != 1) ops_.scale(result, mixture.sum_scale);
  if (!shard_.whole()) ops_.gather(all, result, own(hp_.model_dim).first);
  return all;
}

}  // namespace millrace::model

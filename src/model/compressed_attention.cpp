#include "model/compressed_attention.h"

#include <cmath>
#include <string>

namespace millrace::model {

using exec::Act;

namespace {

CompressorWeights list_compressor(UnitBuilder& units, const std::string& stem, const exec::Compressor& compressor,
                                  std::int64_t model_dim) {
  CompressorWeights weights;
  weights.inputs = units.matrix(stem + "_kv.weight", model_dim, compressor.given());
  weights.gates = units.matrix(stem + "_gate.weight", model_dim, compressor.given());
  weights.norm = units.vector(stem + "_norm.weight", compressor.dim);
  weights.bias = units.vectors(stem + "_ape.weight", compressor.given(), compressor.ratio);
  return weights;
}

/// Makes the rows that the pass completes, of h.
void record_compressor(exec::Ops& ops, std::int64_t layer, const exec::Compressor& compressor,
                       const CompressorWeights& weights, Act h) {
  const char* const what = compressor.index ? "index" : "rows";
  const Act inputs = ops.buffer(std::string("inputs of ") + what, compressor.given()),
            gates = ops.buffer(std::string("gates of ") + what, compressor.given());
  const exec::Product both[] = {{inputs, weights.inputs, {}}, {gates, weights.gates, {}}};
  ops.matmul(both, h);
  ops.compress(inputs, gates, layer, weights.norm, weights.bias, compressor);
}

/// The rows that each token sees, of those that are complete. low: the latent of its queries.
Act record_choice(exec::Ops& ops, std::int64_t layer, const CompressedAttentionSpec& spec,
                  const CompressedAttentionWeights& weights, Act low, Act h) {
  const exec::Indexer& indexer = spec.indexer;
  const Act chosen = ops.buffer("selected", indexer.top_k), q = ops.buffer("index q", indexer.heads * indexer.head_dim),
            by = ops.buffer("index weights", indexer.heads);
  ops.matmul(q, weights.index_q, low);
  ops.matmul(by, weights.index_weights, h);
  ops.rope(q, indexer.heads, indexer.head_dim, spec.rope);
  ops.scale(by, 1.0f / std::sqrt(static_cast<float>(indexer.heads * indexer.head_dim)));
  ops.select(chosen, q, by, layer, indexer);
  return chosen;
}

}  // namespace

CompressedAttentionWeights list_compressed_attention(UnitBuilder& units, int layer, const CompressedAttentionSpec& spec,
                                                     std::int64_t model_dim) {
  const auto name = [&](std::string_view tensor) { return layer_tensor(layer, tensor); };
  const std::int64_t q_dim = spec.heads * spec.head_dim, groups_dim = spec.out_groups * spec.out_rank;
  CompressedAttentionWeights weights;
  weights.q_low = units.matrix(name("attn_q_a.weight"), model_dim, spec.q_rank);
  weights.key = units.matrix(name("attn_kv.weight"), model_dim, spec.head_dim);
  weights.q_low_norm = units.vector(name("attn_q_a_norm.weight"), spec.q_rank);
  weights.q = units.matrix(name("attn_q_b.weight"), spec.q_rank, q_dim);
  weights.key_norm = units.vector(name("attn_kv_a_norm.weight"), spec.head_dim);
  if (spec.ratio > 0)
    weights.rows = list_compressor(units, name("attn_compressor"), spec.compressor(spec.head_dim, 0), model_dim);
  if (spec.ratio > 0 && spec.indexer.top_k > 0) {
    weights.index =
        list_compressor(units, name("indexer_compressor"), spec.compressor(spec.indexer.head_dim, 0), model_dim);
    weights.index_q =
        units.matrix(name("indexer.attn_q_b.weight"), spec.q_rank, spec.indexer.heads * spec.indexer.head_dim);
    weights.index_weights = units.matrix(name("indexer.proj.weight"), model_dim, spec.indexer.heads);
  }
  weights.sinks = units.vector(name("attn_sinks.weight"), spec.heads);
  weights.out_of_groups = units.unscaled(name("attn_output_a.weight"), q_dim / spec.out_groups, groups_dim);
  weights.out = units.matrix(name("attn_output_b.weight"), groups_dim, model_dim);
  return weights;
}

/// Values are keys, and keys are turned by their positions; so what a head sums up is turned back by the token's own,
/// and what it has of an earlier token depends on how far away that is.
void record_compressed_attention(exec::Ops& ops, std::int64_t layer, const CompressedAttentionSpec& spec,
                                 const CompressedAttentionWeights& weights, std::int64_t besides, Act h, float eps) {
  const std::int64_t heads = spec.heads, dim = spec.head_dim;
  const Act low = ops.buffer("low q", spec.q_rank), q = ops.buffer("q", heads * dim), key = ops.buffer("key", dim),
            attended = ops.buffer("attended", heads * dim),
            groups = ops.buffer("of groups", spec.out_groups * spec.out_rank);
  const exec::Product products[] = {{low, weights.q_low, {}}, {key, weights.key, {}}};
  ops.matmul(products, h);
  ops.rms_norm(low, low, weights.q_low_norm, eps);
  ops.matmul(q, weights.q, low);
  ops.rms_norm_heads(q, {}, dim, eps);
  ops.rope(q, heads, dim, spec.rope);
  ops.rms_norm(key, key, weights.key_norm, eps);
  ops.rope(key, 1, dim, spec.rope);
  ops.store_latent(layer, key);

  exec::Attention attention;
  attention.heads = heads;
  attention.kv_heads = 1;
  attention.head_dim = attention.latent_values = dim;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  attention.window = spec.window;
  attention.sinks = weights.sinks;
  attention.whole_pictures = false;
  Act chosen;
  if (spec.ratio > 0) {
    exec::Compressor rows = spec.compressor(dim, eps);
    rows.inputs = besides + 1;
    record_compressor(ops, besides, rows, weights.rows, h);
    attention.rows = besides;
  }
  if (spec.ratio > 0 && spec.indexer.top_k > 0) {
    exec::Compressor index = spec.compressor(spec.indexer.head_dim, eps);
    index.inputs = besides + 2;
    index.index = true;
    record_compressor(ops, besides, index, weights.index, h);
    chosen = record_choice(ops, besides, spec, weights, low, h);
    attention.selected = spec.indexer.top_k;
  }
  ops.attention(attended, q, layer, attention, chosen);
  ops.rope(attended, heads, dim, spec.rope, true);
  ops.matmul_heads(groups, weights.out_of_groups, attended, spec.out_groups);
  ops.matmul(h, weights.out, groups);
}

}  // namespace millrace::model

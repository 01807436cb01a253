// The weights of each layer, in the order in which a pass uses them.
#include <fmt/format.h>

#include <string>

#include "model/control_vector.h"
#include "model/decoder_impl.h"

namespace millrace::model {

using residency::UnitKind;

namespace {

/// A tensor that several weights are rows of.
struct RowsOf {
  const char* tensor;
  std::int64_t rows;
  bool holds;  // the file has it
};

/// Falcon-H1's and PLaMo 3's files leave the ending of some norms out.
std::string norm_name(const UnitBuilder& units, int index, const char* stem) {
  const std::string bare = layer_tensor(index, stem);
  return units.has(bare) ? bare : bare + ".weight";
}

}  // namespace

/// Attention, or what stands in its place.
void Decoder::list_mixer(UnitBuilder& units, int index, LayerWeights& weights) const {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  if (index == spec_.ngrams.layer) list_ngrams(units, index, weights);
  if (spec.mixer == Mixer::none) return;
  if (predicts()) list_prediction(units, index, weights);
  if (connects()) weights.mixer_weigher = list_weigher(units, layer_tensor(index, "hc_attn"), true);
  if (spec.token_norm != nullptr)
    weights.token_norm = units.vector(layer_tensor(index, fmt::format("{}.weight", spec.token_norm)), hp_.model_dim);
  if (spec.norms_inputs && spec.norms_attended)
    list_norm(units, index, spec.attn_norm, weights.attn_norm, weights.attn_norm_bias);
  if (spec.mixer == Mixer::delta_net)
    weights.delta_net = list_delta_net(units, index, spec.delta_net, hp_.model_dim);
  else if (spec.mixer == Mixer::mamba)
    weights.mamba = list_mamba(units, index, spec.mamba, hp_.model_dim);
  else if (spec.mixer == Mixer::mamba2)
    weights.mamba2 = list_mamba2(units, index, spec.mamba2, hp_.model_dim);
  else if (spec.mixer == Mixer::short_convolution)
    weights.short_convolution = list_short_convolution(units, index, spec.short_convolution, hp_.model_dim);
  else if (spec.mixer == Mixer::compressed_attention)
    weights.compressed = list_compressed_attention(units, index, spec.compressed, hp_.model_dim);
  else if (spec.attention.latent.rank > 0)
    list_latent_attention(units, index, weights);
  else
    list_attention(units, index, weights);
  if (spec.scans) weights.mamba2 = list_mamba2(units, index, spec.mamba2, hp_.model_dim);
  if (spec.norms_results)
    weights.attn_result_norm = units.vector(norm_name(units, index, "post_attention_norm"), hp_.model_dim);
  if (spec.norms_sums) list_norm(units, index, "attn_output_norm", weights.attn_sum_norm, weights.attn_sum_bias);
}

/// The weight, and of LayerNorm the bias where the file has one.
void Decoder::list_norm(UnitBuilder& units, int index, const char* stem, WeightRef& weight, WeightRef& bias) const {
  weight = units.vector(norm_name(units, index, stem), hp_.model_dim);
  if (spec_.layer_norms) bias = units.optional_vector(layer_tensor(index, fmt::format("{}.bias", stem)), hp_.model_dim);
}

void Decoder::list_attention(UnitBuilder& units, int index, LayerWeights& weights) const {
  const AttentionSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention;
  const std::int64_t dim = hp_.model_dim;
  const std::int64_t read = spec_.layers[static_cast<std::size_t>(index)].token_norm != nullptr ? 2 * dim : dim;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  const std::int64_t q_dim = spec.gated ? 2 * spec.q_dim() : spec.q_dim(), kv_dim = spec.kv_dim();
  const std::int64_t v_dim = spec.kv_heads * spec.v_dim();
  const auto heads_of = [&](std::int64_t rows) {
    return RowRange{rows / heads_.count * heads_.index, rows / heads_.count};
  };
  // Some files hold the three as rows of one tensor.
  const RowsOf fused{"attn_qkv", q_dim + kv_dim + v_dim, units.has(name("attn_qkv.weight"))};
  const auto product = [&](const char* tensor, std::int64_t first, std::int64_t rows, WeightRef& weight,
                           WeightRef& its_bias) {
    const std::string matrix = name(fmt::format("{}.weight", fused.holds ? fused.tensor : tensor));
    const RowRange own = heads_of(rows);
    const std::int64_t all = fused.holds ? fused.rows : rows, begin = own.first + (fused.holds ? first : 0);
    weight = units.rows(matrix, read, all, begin, own.count);
    if (!spec.may_have_biases) return;
    const std::string vector = name(fmt::format("{}.bias", fused.holds ? fused.tensor : tensor));
    its_bias = units.optional_elements(vector, all, begin, own.count);
  };
  if (const std::int64_t rank = spec_.layers[static_cast<std::size_t>(index)].laurel_rank; rank > 0) {
    weights.laurel_down = units.matrix(name("laurel_l.weight"), dim, rank);
    weights.laurel_up = units.matrix(name("laurel_r.weight"), rank, dim);
    weights.laurel_norm = units.vector(name("laurel_post_norm.weight"), dim);
  }
  product("attn_q", 0, q_dim, weights.q, weights.q_bias);
  if (spec.reads < 0) {
    product("attn_k", q_dim, kv_dim, weights.k, weights.k_bias);
    if (!spec.values_are_keys) product("attn_v", q_dim + kv_dim, v_dim, weights.v, weights.v_bias);
  }
  if (spec.own_gate) {
    const RowRange own = heads_of(spec.q_dim());
    weights.attn_gate = units.rows(name("attn_gate.weight"), dim, spec.q_dim(), own.first, own.count);
  }
  if (spec.reads >= 0)  // converters leave what was trained and is not used
    for (const char* tensor : {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"}) units.ignore(name(tensor));
  if (spec.norm == HeadNorm::each || spec.norm == HeadNorm::together) {
    const bool each = spec.norm == HeadNorm::each;
    weights.q_norm = units.vector(name("attn_q_norm.weight"), each ? spec.head_dim : spec.q_dim());
    if (spec.reads < 0) weights.k_norm = units.vector(name("attn_k_norm.weight"), each ? spec.head_dim : kv_dim);
  }
  if (spec.index.indexer.top_k > 0) list_indexer(units, index, weights);
  if (spec.gates_heads) {
    const RowRange heads = heads_of(spec.heads);
    weights.head_gate = units.rows(name("attn_gate.weight"), dim, spec.heads, heads.first, heads.count);
  }
  if (spec.sinks) {
    const RowRange heads = heads_of(spec.heads);
    weights.sinks = units.some_elements(name("attn_sinks.weight"), spec.heads, heads.first, heads.count);
  }
  const RowRange rows = own(dim);
  weights.attn_out = units.rows(name("attn_output.weight"), spec.heads * spec.v_dim(), dim, rows.first, rows.count);
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
  if (spec.gates_heads) weights.head_gate = units.matrix(name("attn_gate.weight"), dim, spec.heads);
  if (latent.q_rank > 0) {
    weights.q_low_norm = units.vector(name("attn_q_a_norm.weight"), latent.q_rank);
    weights.q = units.matrix(name("attn_q_b.weight"), latent.q_rank, spec.q_dim());
  }
  weights.latent_norm = units.vector(name("attn_kv_a_norm.weight"), latent.rank);
  if (spec.index.indexer.top_k > 0 && spec.index.own) list_indexer(units, index, weights);
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

void Decoder::list_indexer(UnitBuilder& units, int index, LayerWeights& weights) const {
  const AttentionSpec& spec = spec_.layers[static_cast<std::size_t>(index)].attention;
  const exec::Indexer& indexer = spec.index.indexer;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  const std::int64_t dim = hp_.model_dim;
  if (indexer.block > 0 || spec.index.pools()) {
    weights.index_q = units.matrix(name("indexer.q_proj.weight"), dim, indexer.heads * indexer.head_dim);
    weights.index_k = units.matrix(name("indexer.k_proj.weight"), dim, indexer.head_dim);
    weights.index_q_norm = units.vector(name("indexer.q_norm.weight"), indexer.head_dim);
    weights.index_norm = units.vector(name("indexer.k_norm.weight"), indexer.head_dim);
    return;
  }
  weights.index_q = units.matrix(name("indexer.attn_q_b.weight"), spec.latent.q_rank, indexer.heads * indexer.head_dim);
  weights.index_k = units.matrix(name("indexer.attn_k.weight"), dim, indexer.head_dim);
  weights.index_weights = units.matrix(name("indexer.proj.weight"), dim, indexer.heads);
  weights.index_norm = units.vector(name("indexer.k_norm.weight"), indexer.head_dim);
  weights.index_bias = units.vector(name("indexer.k_norm.bias"), indexer.head_dim);
}

/// Closes the trunk's unit; a mixture's experts are units of their own behind it.
void Decoder::list_feed_forward(UnitBuilder& units, int index, LayerWeights& weights) const {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  if (spec.feeds_forward() && connects())
    weights.feed_forward_weigher = list_weigher(units, layer_tensor(index, "hc_ffn"), true);
  const bool shares_norm = spec.parallel && !units.has(layer_tensor(index, fmt::format("{}.weight", spec.ffn_norm)));
  if (spec.feeds_forward() && spec.norms_inputs && !shares_norm)
    list_norm(units, index, spec.ffn_norm, weights.ffn_norm, weights.ffn_norm_bias);
  if (spec.ff_dim > 0) list_dense(units, index, weights);
  if (spec.mixes()) return list_mixture(units, index, weights);
  list_results(units, index, weights);
  units.end();
}

/// What stands behind the layer's feed-forward: its norms, what it adds of the token, and its scale.
void Decoder::list_results(UnitBuilder& units, int index, LayerWeights& weights) const {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  if (spec.norms_results)
    weights.ffn_result_norm = units.vector(norm_name(units, index, "post_ffw_norm"), hp_.model_dim);
  if (spec.norms_sums) list_norm(units, index, "layer_output_norm", weights.ffn_sum_norm, weights.ffn_sum_bias);
  if (predicts()) list_correction(units, index, weights);
  if (const std::int64_t each = spec_.per_layer_dim; each > 0) {
    weights.per_layer_gate = units.matrix(name("inp_gate.weight"), hp_.model_dim, each);
    weights.per_layer_out = units.matrix(name("proj.weight"), each, hp_.model_dim);
    weights.per_layer_norm = units.vector(name("post_norm.weight"), hp_.model_dim);
  }
  if (spec.output_scale) weights.output_scale = units.vector(name("layer_output_scale.weight"), 1);
  if (!units.has(name(kControlSum))) return;
  if (spec_.streams > 1)
    units.fail(error(Code::unsupported,
                     "control vectors are for models with one residual stream, and this one has {}; leave them out",
                     spec_.streams));
  weights.control_one = units.vector(name(kControlOne), 1);
  weights.control_sum = units.vector(name(kControlSum), hp_.model_dim);
}

void Decoder::list_dense(UnitBuilder& units, int index, LayerWeights& weights) const {
  const std::int64_t dim = hp_.model_dim, ff = spec_.layers[static_cast<std::size_t>(index)].ff_dim;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  const std::string up = name("ffn_up.weight");
  const bool biases = spec_.layers[static_cast<std::size_t>(index)].ff_biases;
  const RowRange of_ff = own(ff), of_dim = own(dim);
  if (!spec_.layers[static_cast<std::size_t>(index)].gated) {
    weights.up = units.rows(up, dim, ff, of_ff.first, of_ff.count);
    if (biases) weights.up_bias = units.optional_elements(name("ffn_up.bias"), ff, of_ff.first, of_ff.count);
  } else if (units.has(name("ffn_gate.weight"))) {
    weights.gate = units.rows(name("ffn_gate.weight"), dim, ff, of_ff.first, of_ff.count);
    weights.up = units.rows(up, dim, ff, of_ff.first, of_ff.count);
  } else {  // the gate's rows stand before the others of one tensor
    weights.gate = units.rows(up, dim, 2 * ff, of_ff.first, of_ff.count);
    weights.up = units.rows(up, dim, 2 * ff, ff + of_ff.first, of_ff.count);
  }
  weights.down = units.rows(name("ffn_down.weight"), ff, dim, of_dim.first, of_dim.count);
  if (biases) weights.down_bias = units.optional_elements(name("ffn_down.bias"), dim, of_dim.first, of_dim.count);
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
  if (mixture.latent_dim > 0) {
    const RowRange low = own(mixture.latent_dim);
    weights.latent_down = units.rows(name("ffn_latent_down.weight"), dim, mixture.latent_dim, low.first, low.count);
  }
  if (mixture.weighs_inputs) weights.input_router = units.unscaled(name("ffn_gate_inp.weight"), dim, mixture.experts);
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
  // Hunyuan's files leave the ending out.
  const bool bare = units.has(name("exp_probs_b"));
  if (mixture.selection_bias)
    experts.selection_bias = units.vector(name(bare ? "exp_probs_b" : "exp_probs_b.bias"), mixture.experts);
  if (mixture.of_tokens) experts.of_tokens = units.integers(name("ffn_gate_tid2eid.weight"), mixture.top_k, hp_.vocab);
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
  experts.activation = mixture.limit > 0 ? spec.limits : spec.activation;
  experts.limit = mixture.limit;
  const std::int64_t width = mixture.latent_dim > 0 ? mixture.latent_dim : dim;
  experts.first_unit = units.experts(index, mixture.experts, width, mixture.ff_dim, spec.gated, of_ff, own(width));
  if (!spec.gated) experts.gate_part = exec::kNoPart, experts.up_part = 0, experts.down_part = 1;
  if (mixture.latent_dim == 0) return;
  units.begin(UnitKind::trunk, index);  // behind the experts, as a pass uses it
  weights.latent_up = units.rows(name("ffn_latent_up.weight"), mixture.latent_dim, dim, of_dim.first, of_dim.count);
  units.end();
}

/// The numbers that each expert's products are multiplied by, where the file has them. The down's and the up's multiply
/// the expert's weight in the sum instead, being factors of its result, where no bias is between; the gate's cannot,
/// nor can an up's that goes through an activation or is limited.
void Decoder::list_expert_scales(UnitBuilder& units, int index, exec::Experts& experts) const {
  const LayerSpec& spec = spec_.layers[static_cast<std::size_t>(index)];
  const bool biases = spec.mixture.biases;
  const auto scale = [&](const char* tensor) {
    return units.optional_vector(layer_tensor(index, tensor), spec.mixture.experts);
  };
  WeightRef& of_down = biases ? experts.down_scale : experts.output_scale;
  if (of_down.none()) of_down = scale("ffn_down_exps.scale");
  if (units.has(layer_tensor(index, "ffn_gate_up_exps.weight"))) return;
  const bool up_in_place = biases || spec.mixture.limit > 0 || spec.activation == kernels::Activation::clamped;
  if (spec.gated) (up_in_place ? experts.up_scale : experts.hidden_scale) = scale("ffn_up_exps.scale");
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

/// What else is embedded, and the norm of all.
void Decoder::list_embeddings(UnitBuilder& units, std::int64_t positions) {
  if (spec_.position_table) positions_ = units.table("position_embd.weight", hp_.model_dim, positions);
  constexpr std::int64_t kPair = 2;
  if (spec_.pair_types) token_type_ = units.table("token_types.weight", hp_.model_dim, kPair);
  if (!spec_.token_types && !spec_.embedding_norm) return;
  units.begin(UnitKind::trunk);
  if (spec_.token_types && !spec_.pair_types) token_type_ = units.first_row("token_types.weight", hp_.model_dim);
  if (spec_.embedding_norm) {
    embedding_norm_ = units.vector("token_embd_norm.weight", hp_.model_dim);
    embedding_norm_bias_ = units.optional_vector("token_embd_norm.bias", hp_.model_dim);
  }
  units.end();
}

Status Decoder::list_units(const modelfile::Model& file, residency::UnitTable& table) {
  UnitBuilder units(file, table);
  // A shard's head is rows of the table, in a unit of its own.
  const bool as_head = spec_.head && ends() && units.ties_head() && shard_.whole();
  if (begins() || as_head) embedding_ = units.embedding(hp_.model_dim, hp_.vocab, as_head);
  if (spec_.per_layer_dim > 0) list_for_layers(units);
  if (predicts()) opened_streams_ = list_between_streams(units, "altup_proj.weight");
  const modelfile::TensorInfo* positions = file.find("position_embd.weight");
  if (begins()) list_embeddings(units, positions == nullptr ? hp_.context_length : positions->rows());
  layers_.resize(static_cast<std::size_t>(stage_.last));
  for (auto index = static_cast<int>(stage_.first); index < stage_.last && units.status().ok(); ++index) {
    LayerWeights& weights = layers_[static_cast<std::size_t>(index)];
    if (const NgramSpec& ngrams = spec_.ngrams; index == ngrams.layer)
      ngrams_table_ = units.table("per_layer_token_embd.weight", ngrams.dim, ngrams.table_rows, ngrams.ngrams.rows());
    units.begin(UnitKind::trunk, index);
    list_mixer(units, index, weights);
    list_feed_forward(units, index, weights);
    units.refuse_unused(index);
  }
  if (ends()) list_streams_end(units);
  if (ends() && !spec_.head) {
    output_ = units.last_norm(spec_.output_norm, hp_.model_dim);
    if (spec_.dense_dim > 0) {
      units.begin(UnitKind::trunk);
      dense_up_ = units.matrix("dense_2.weight", hp_.model_dim, spec_.dense_dim);
      dense_down_ = units.matrix("dense_3.weight", spec_.dense_dim, hp_.model_dim);
      units.end();
    }
  } else if (ends() && shard_.whole()) {
    output_ = units.output(spec_.output_norm, hp_.model_dim, hp_.vocab, embedding_);
  } else if (ends()) {
    output_ =
        units.output_rows(spec_.output_norm, hp_.model_dim, hp_.vocab, own(hp_.vocab).first, own(hp_.vocab).count);
  }
  scales_ = units.scales();
  return units.status();
}

WeightRef DraftTable::take(WeightRef of_model) {
  if (own_ == nullptr || of_model.none()) return of_model;
  const auto [place, is_new] = taken_.try_emplace(of_model.unit, 0);
  if (is_new) {
    residency::Unit unit = model_.units()[static_cast<std::size_t>(of_model.unit)];
    unit.aside = true;
    place->second = own_->add(std::move(unit));
  }
  return {place->second, of_model.part};
}

std::vector<std::pair<WeightRef, WeightRef>> DraftTable::take_scales(
    const std::vector<std::pair<WeightRef, WeightRef>>& of_model) const {
  if (own_ == nullptr) return of_model;
  std::vector<std::pair<WeightRef, WeightRef>> scales;
  for (const auto& [matrix, scale] : of_model)
    if (const auto place = taken_.find(matrix.unit); place != taken_.end())
      scales.push_back({{place->second, matrix.part}, {place->second, scale.part}});
  return scales;
}

Status Decoder::list_draft_block(const modelfile::Model& file, DraftTable& table) {
  UnitBuilder units(file, table.table());
  units.begin_aside();
  const auto index = static_cast<int>(hp_.layers);
  const std::int64_t dim = hp_.model_dim;
  const auto name = [&](std::string_view tensor) {
    return layer_tensor(index, fmt::format("nextn.{}.weight", tensor));
  };
  const bool own_embedding = units.has(name("embed_tokens"));
  draft_.embedding = own_embedding ? units.table(name("embed_tokens"), dim, hp_.vocab) : table.take(embedding_);
  const bool own_norm = units.has(name("shared_head_norm")), own_head = units.has(name("shared_head_head"));
  if (!own_norm) draft_.norm = table.take(output_.norm);
  if (!own_head) draft_.head = table.take(output_.head);
  LayerWeights& weights = layers_.emplace_back();
  units.begin(UnitKind::trunk, index);
  draft_.embedding_norm = units.vector(name("enorm"), dim);
  draft_.states_norm = units.vector(name("hnorm"), dim);
  draft_.joined = units.matrix(name("eh_proj"), 2 * dim, dim);
  if (own_norm) draft_.norm = units.vector(name("shared_head_norm"), dim);
  if (own_head) draft_.head = units.matrix(name("shared_head_head"), dim, hp_.vocab);
  list_mixer(units, index, weights);
  list_feed_forward(units, index, weights);
  units.refuse_unused(index);
  scales_ = table.take_scales(scales_);
  scales_.insert(scales_.end(), units.scales().begin(), units.scales().end());
  return units.status();
}

Status Decoder::list_draft_head(const modelfile::Model& file, int first_file, const Decoder& target,
                                std::int64_t tap_dim, DraftTable& table) {
  UnitBuilder units(file, table.table(), first_file);
  units.begin_aside();
  const std::int64_t dim = hp_.model_dim;
  const modelfile::TensorInfo* const own = file.find("token_embd.weight");
  draft_.embedding = own != nullptr ? units.table(own->name, dim, target.hp_.vocab) : table.take(target.embedding_);
  const bool own_head = units.has("output.weight");
  if (!own_head) draft_.head = table.take(target.output_.head);
  scales_ = table.take_scales(target.scales_);
  LayerWeights& weights = layers_.emplace_back();
  units.begin(UnitKind::trunk, static_cast<int>(target.hp_.layers));
  draft_.states_norm = units.optional_vector("enc.output_norm.weight", tap_dim);
  draft_.joined = units.matrix("fc.weight", tap_dim, dim);
  draft_.norm = units.vector("output_norm.weight", dim);
  if (own_head) draft_.head = units.matrix("output.weight", dim, hp_.vocab);
  list_mixer(units, 0, weights);
  list_feed_forward(units, 0, weights);
  units.refuse_unused(0);
  units.refuse_unused_of({""}, {"blk.0.", "token_embd.weight", "fc.", "enc.output_norm.", "output_norm.", "output.",
                                "d2t", "rope_freqs."});
  scales_.insert(scales_.end(), units.scales().begin(), units.scales().end());
  return units.status();
}

Status Decoder::list_assistant(const modelfile::Model& file, int first_file, const Decoder& target, DraftTable& table) {
  UnitBuilder units(file, table.table(), first_file);
  units.begin_aside();
  const std::int64_t dim = hp_.model_dim, model_dim = target.hp_.model_dim;
  draft_.embedding = table.take(target.embedding_);
  scales_ = table.take_scales(target.scales_);
  units.begin(UnitKind::trunk, static_cast<int>(target.hp_.layers));
  draft_.joined = units.matrix("nextn.pre_projection.weight", 2 * model_dim, dim);
  draft_.given_back = units.matrix("nextn.post_projection.weight", dim, model_dim);
  draft_.norm = units.vector("output_norm.weight", dim);
  draft_.head = units.matrix("token_embd.weight", dim, hp_.vocab);
  for (std::int64_t index = 0; index < hp_.layers; ++index) {
    const auto number = static_cast<int>(index);
    LayerWeights& weights = layers_.emplace_back();
    if (index > 0) units.begin(UnitKind::trunk, static_cast<int>(target.hp_.layers));
    list_mixer(units, number, weights);
    list_feed_forward(units, number, weights);
    units.refuse_unused(number);
  }
  units.refuse_unused(static_cast<int>(hp_.layers));
  units.refuse_unused_of({""}, {"blk.", "token_embd.", "nextn.", "output_norm.", "rope_freqs.", "masked_embd_"});
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

}  // namespace millrace::model

#include "model/tower_layers.h"

#include <fmt/format.h>

#include <cmath>

#include "model/keys.h"

namespace millrace::model {

using exec::Act;
using exec::Rows;
using kernels::Activation;
using vision::Projector;

namespace {

constexpr std::int64_t kMostLayers = 1000, kMostDim = 1 << 16, kMostHeads = 1 << 10, kMostSide = 1 << 10;

/// Of the feed-forwards: the keys name two, and a file without both means the third.
Status read_activation(Keys& keys, TowerSpec& spec) {
  const bool gelu = keys.optional_bool("use_gelu", false), silu = keys.optional_bool("use_silu", false);
  MR_RETURN_IF_ERROR(keys.status());
  if (gelu && silu) return error(Code::corrupt, "clip.use_gelu and clip.use_silu are both true");
  spec.activation = silu ? Activation::silu : Activation::gelu;
  spec.quick_gelu = !gelu && !silu;
  return {};
}

/// Windows are of so many pixels; the key says of how many layers one sees all.
Expected<TowerSpec> read_windows(Keys& keys, TowerSpec spec) {
  spec.full_every = keys.optional("vision.n_wa_pattern", 8, 0, kMostLayers);
  spec.window = keys.optional("vision.window_size", 112, 1, 1 << 16) / spec.vision.token_side();
  MR_RETURN_IF_ERROR(keys.status());
  if (spec.window > 0) return spec;
  return error(Code::corrupt, "clip.vision.window_size is less than a token's {} pixels", spec.vision.token_side());
}

}  // namespace

Expected<TowerSpec> read_tower_spec(const modelfile::Model& mmproj) {
  TowerSpec spec;
  MR_ASSIGN_OR_RETURN(spec.vision, vision::read_spec(mmproj));
  Keys keys(mmproj);
  spec.layers = keys.required("vision.block_count", 1, kMostLayers);
  spec.dim = keys.required("vision.embedding_length", 8, kMostDim);
  spec.ff_dim = keys.required("vision.feed_forward_length", 1, kMostDim);
  spec.heads = keys.required("vision.attention.head_count", 1, kMostHeads);
  spec.head_dim = keys.optional("vision.attention.head_dim", spec.dim / std::max<std::int64_t>(1, spec.heads), 1, 512);
  spec.out_dim = keys.required("vision.projection_dim", 1, 1 << 20);
  spec.eps = static_cast<float>(keys.optional_float("vision.attention.layer_norm_epsilon", 1e-6, 0, 1));
  MR_RETURN_IF_ERROR(keys.status());
  if (spec.head_dim % 8 != 0)
    return error(Code::unsupported, "a tower with heads of {} channels (this version wants a multiple of 8)",
                 spec.head_dim);
  MR_RETURN_IF_ERROR(read_activation(keys, spec));
  switch (spec.vision.projector) {
    case Projector::qwen2vl:
    case Projector::qwen3vl:
      spec.rope = TowerRope::halves;
      return spec;
    case Projector::qwen25vl:
      spec.rope = TowerRope::halves;
      spec.layer_norms = false;
      spec.gated = true;
      return read_windows(keys, spec);
    case Projector::pixtral:
      spec.rope = TowerRope::alternating;
      spec.layer_norms = false;
      spec.gated = true;
      return spec;
    case Projector::gemma3:
      return spec;
    default:
      return error(Code::unsupported,
                   "towers of projector type '{}' are not computed yet; qwen2vl_merger, qwen2.5vl_merger, "
                   "qwen3vl_merger, pixtral and "
                   "gemma3 are",
                   vision::projector_name(spec.vision.projector));
  }
}

TowerBuilder::TowerBuilder(const modelfile::Model& mmproj, const TowerSpec& spec)
    : file_(mmproj), spec_(spec), units_(mmproj, tower_.units) {
  tower_.spec = spec.vision;
  tower_.layers = spec.layers;
  tower_.dim = spec.dim;
  tower_.window = spec.window;
  tower_.patch_cols = 3 * spec.vision.patch * spec.vision.patch;
}

TowerBuilder::Norm TowerBuilder::norm(const std::string& stem, std::int64_t cols) {
  return {units_.vector(stem + ".weight", cols), units_.optional_vector(stem + ".bias", cols)};
}

void TowerBuilder::normalize(Act out, Act x, const Norm& norm, bool layer_norm) {
  if (layer_norm) return ops_.layer_norm(out, x, norm.weight, norm.bias, spec_.eps);
  ops_.rms_norm(out, x, norm.weight, spec_.eps);
}

exec::Product TowerBuilder::product(Act out, const std::string& stem, std::int64_t cols, std::int64_t rows) {
  return {out, units_.unscaled(stem + ".weight", cols, rows), units_.optional_vector(stem + ".bias", rows)};
}

/// out = W x (+ b), as wide as both buffers are.
void TowerBuilder::multiply(Act out, const std::string& stem, Act x) {
  const exec::Product made = product(out, stem, ops_.cols(x), ops_.cols(out));
  ops_.matmul(std::span(&made, 1), x);
}

/// x = W patch (+ b) + the embedding of its place. Of two filters, a film's frames, a picture has both.
void TowerBuilder::embed() {
  const std::int64_t dim = spec_.dim, side = spec_.vision.patch;
  const Act patch = ops_.buffer("patch", tower_.patch_cols, Rows::whole);
  begin_unit();
  const exec::Product first{x_, units_.filters("v.patch_embd.weight", side, 3, dim),
                            units_.optional_vector("v.patch_embd.bias", dim)};
  const bool film = units_.has("v.patch_embd.weight.1");
  const exec::Product second{h_, film ? units_.filters("v.patch_embd.weight.1", side, 3, dim) : WeightRef(), {}};
  if (tower_.table_side > 0) {
    const Act place = ops_.buffer("place", dim, Rows::whole),
              given = ops_.buffer("given", tower_.patch_cols + dim, Rows::whole);
    ops_.given(given);
    ops_.pick_heads(patch, given, 1, tower_.patch_cols, 0);
    ops_.pick_heads(place, given, 1, dim, tower_.patch_cols);
    ops_.matmul(std::span(&first, 1), patch);
    if (film) ops_.matmul(std::span(&second, 1), patch);
    if (film) ops_.add(x_, h_);
    ops_.add(x_, place);
  } else {
    ops_.given(patch);
    ops_.matmul(std::span(&first, 1), patch);
    if (film) ops_.matmul(std::span(&second, 1), patch);
    if (film) ops_.add(x_, h_);
  }
  if (units_.has("v.pre_ln.weight")) normalize(x_, x_, norm("v.pre_ln", dim), spec_.layer_norms);
  units_.end();
}

/// Of one tensor, or of one each.
void TowerBuilder::list_projections(const std::string& stem, std::array<exec::Product, 3>& qkv) {
  const std::int64_t width = spec_.heads * spec_.head_dim;
  const std::string all = stem + "attn_qkv";
  const bool together = units_.has(all + ".weight");
  for (std::size_t i = 0; i < qkv.size(); ++i) {
    const std::string own = stem + (i == 0 ? "attn_q" : i == 1 ? "attn_k" : "attn_v");
    const auto first = static_cast<std::int64_t>(i) * width;
    qkv[i].weight = together ? units_.rows(all + ".weight", spec_.dim, 3 * width, first, width)
                             : units_.unscaled(own + ".weight", spec_.dim, width);
    qkv[i].bias = together ? units_.optional_elements(all + ".bias", 3 * width, first, width)
                           : units_.optional_vector(own + ".bias", width);
  }
}

/// x += W_out attention(rope(W_q h), rope(W_k h), W_v h), h = norm(x), among all patches.
void TowerBuilder::layer(int index) {
  const std::int64_t width = spec_.heads * spec_.head_dim;
  const std::string stem = fmt::format("v.blk.{}.", index);
  const Act q = ops_.buffer("q", width), k = ops_.buffer("k", width), v = ops_.buffer("v", width),
            attended = ops_.buffer("attended", width);
  ops_.begin_layer();
  ops_.begin_block();
  begin_unit(index);
  normalize(h_, x_, norm(stem + "ln1", spec_.dim), spec_.layer_norms);
  std::array<exec::Product, 3> qkv{exec::Product{q, {}, {}}, {k, {}, {}}, {v, {}, {}}};
  list_projections(stem, qkv);
  ops_.matmul(qkv, h_);
  if (spec_.rope != TowerRope::none) {
    ops_.rope(q, spec_.heads, spec_.head_dim, 0);
    ops_.rope(k, spec_.heads, spec_.head_dim, 0);
  }
  ops_.store_kv(0, k, v);
  exec::Attention attention;
  attention.heads = attention.kv_heads = spec_.heads;
  attention.head_dim = spec_.head_dim;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
  attention.causal = false;
  attention.segments = spec_.window > 0 && (spec_.full_every == 0 || (index + 1) % spec_.full_every != 0);
  ops_.attention(attended, q, 0, attention);
  multiply(h_, stem + "attn_out", attended);
  ops_.add(x_, h_);
  feed_forward(index);
  units_.end();
}

/// x += W_down (act(W_gate h) * W_up h), or W_down act(W_up h), h = norm(x).
void TowerBuilder::feed_forward(int index) {
  const std::string stem = fmt::format("v.blk.{}.", index);
  const Act hidden = ops_.buffer("hidden", spec_.ff_dim);
  ops_.begin_block();
  normalize(h_, x_, norm(stem + "ln2", spec_.dim), spec_.layer_norms);
  if (spec_.gated) {
    if (units_.has(stem + "ffn_gate.bias")) {
      const Act factors = ops_.buffer("factors", spec_.ff_dim);
      multiply(hidden, stem + "ffn_gate", h_);
      multiply(factors, stem + "ffn_up", h_);
      ops_.gate(hidden, factors, 0, spec_.activation);
    } else {
      const WeightRef gate = units_.unscaled(stem + "ffn_gate.weight", spec_.dim, spec_.ff_dim);
      const WeightRef up = units_.unscaled(stem + "ffn_up.weight", spec_.dim, spec_.ff_dim);
      ops_.matmul_gated(hidden, gate, up, h_, spec_.activation);
    }
    multiply(h_, stem + "ffn_down", hidden);
  } else {
    // Old files have both names the other way round: the shapes say which is which.
    const modelfile::TensorInfo* const named_down = file_.find(stem + "ffn_down.weight");
    const bool swapped = spec_.ff_dim != spec_.dim && named_down != nullptr && named_down->cols() == spec_.dim;
    multiply(hidden, stem + (swapped ? "ffn_down" : "ffn_up"), h_);
    activate(hidden);
    multiply(h_, stem + (swapped ? "ffn_up" : "ffn_down"), hidden);
  }
  ops_.add(x_, h_);
}

void TowerBuilder::activate(Act x) {
  if (!spec_.quick_gelu) return ops_.activate(x, spec_.activation);
  const Act gate = ops_.buffer("quick", ops_.cols(x));
  ops_.copy(gate, x);
  ops_.scale(gate, 1.702f);
  ops_.sigmoid_gate(x, gate);
}

/// W2 gelu(W1 x).
Act TowerBuilder::two_products(const std::string& first, const std::string& second, Act x, std::int64_t hidden) {
  const Act inner = ops_.buffer("projector", hidden, Rows::merged),
            out = ops_.buffer(second, spec_.out_dim, Rows::merged);
  multiply(inner, first, x);
  ops_.activate(inner, Activation::gelu_erf);
  multiply(out, second, inner);
  return out;
}

/// What a layer gives beside the last one's: columns that the decoder adds behind one of its first layers.
Act TowerBuilder::deepstack(int index, Act before) {
  const std::string stem = fmt::format("v.deepstack.{}.", index);
  const std::int64_t wide = spec_.dim * ops_.merged_rows();
  const Act merged = ops_.buffer("merged", wide, Rows::merged);
  begin_unit(index);
  ops_.begin_block();
  ops_.merge_rows(merged, before);
  normalize(merged, merged, norm(stem + "norm", wide), true);
  const Act out = two_products(stem + "fc1", stem + "fc2", merged, wide);
  units_.end();
  return out;
}

/// Qwen's: norm, then a token's patches side by side through two products.
Act TowerBuilder::merge_by_norm_and_two() {
  const std::int64_t wide = spec_.dim * ops_.merged_rows();
  const Act merged = ops_.buffer("merged", wide, Rows::merged);
  normalize(x_, x_, norm("v.post_ln", spec_.dim), spec_.layer_norms);
  ops_.merge_rows(merged, x_);
  return two_products("mm.0", "mm.2", merged, wide);
}

/// Pixtral's: two products; before them, where patches are merged, a norm and a matrix of a token's patches.
Act TowerBuilder::merge_by_matrix() {
  const Act merged = ops_.buffer("merged", spec_.dim * ops_.merged_rows(), Rows::merged);
  if (units_.has("mm.input_norm.weight")) normalize(x_, x_, norm("mm.input_norm", spec_.dim), false);
  ops_.merge_rows(merged, x_, true);
  Act token = merged;
  if (units_.has("mm.patch_merger.weight")) {
    token = ops_.buffer("token", spec_.dim, Rows::merged);
    multiply(token, "mm.patch_merger", merged);
  }
  return two_products("mm.1", "mm.2", token, spec_.out_dim);
}

/// Gemma 3's: the mean of a token's patches, a norm, and a matrix that lies transposed.
Act TowerBuilder::merge_by_mean() {
  const Act token = ops_.buffer("token", spec_.dim, Rows::merged),
            out = ops_.buffer("out", spec_.out_dim, Rows::merged);
  normalize(x_, x_, norm("v.post_ln", spec_.dim), true);
  ops_.mean_rows(token, x_);
  normalize(token, token, norm("mm.soft_emb_norm", spec_.dim), false);
  ops_.matmul_heads(out, units_.unscaled("mm.input_projection.weight", spec_.out_dim, spec_.dim), token, 1,
                    {false, true});
  return out;
}

void TowerBuilder::project() {
  ops_.begin_layer();
  ops_.begin_block();
  begin_unit();
  Act out = spec_.vision.projector == Projector::pixtral  ? merge_by_matrix()
            : spec_.vision.projector == Projector::gemma3 ? merge_by_mean()
                                                          : merge_by_norm_and_two();
  units_.end();
  std::int64_t cols = spec_.out_dim;
  for (const Act added : added_) {
    cols += spec_.out_dim;
    const Act joined = ops_.buffer("joined", cols, Rows::merged);
    ops_.join(joined, out, added);
    out = joined;
  }
  tower_.cols = cols;
  ops_.hidden(out);
}

Expected<Tower> TowerBuilder::build(std::uint64_t tile_bytes) {
  if (const modelfile::TensorInfo* const table = file_.find("v.position_embd.weight"); table != nullptr) {
    tower_.table_side = std::llround(std::sqrt(static_cast<double>(table->rows())));
    if (table->cols() != spec_.dim || tower_.table_side * tower_.table_side != table->rows() ||
        tower_.table_side > kMostSide)
      return error(Code::corrupt, "v.position_embd.weight is {} x {}, no square of places in {} channels",
                   table->cols(), table->rows(), spec_.dim);
    units_.ignore("v.position_embd.weight");  // rows of it are handed to a pass
  }
  const std::int64_t merge = spec_.vision.merge * spec_.vision.merge;
  ops_.merge_by(merge);
  kv::LayerKv kept{kv::Keeps::attention, spec_.heads, spec_.head_dim, spec_.head_dim};
  ops_.keep(kv::Layout(std::span(&kept, 1)));
  if (spec_.rope != TowerRope::none) ops_.add_rope(tower_rope(spec_));
  x_ = ops_.buffer("x", spec_.dim, Rows::whole);
  h_ = ops_.buffer("h", spec_.dim);
  embed();
  for (int index = 0; index < spec_.layers; ++index) {
    layer(index);
    if (units_.has(fmt::format("v.deepstack.{}.fc1.weight", index))) added_.push_back(deepstack(index, x_));
  }
  project();
  units_.ignore("v.token_embd.img_break");  // the decoder's own embeddings have it
  units_.refuse_unused_of({"v.", "mm."}, {"mm.a."});
  MR_RETURN_IF_ERROR(units_.status());
  MR_ASSIGN_OR_RETURN(tower_.program, ops_.finish());
  tower_.units.cut(tile_bytes);
  return std::move(tower_);
}

}  // namespace millrace::model

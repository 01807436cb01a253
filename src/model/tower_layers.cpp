#include "model/tower_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/keys.h"

namespace millrace::model {

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
Expected<TowerSpec> read_windowed_layers(Keys& keys, TowerSpec spec) {
  spec.full_every = keys.optional("vision.n_wa_pattern", 8, 0, kMostLayers);
  spec.window = keys.optional("vision.window_size", 112, 1, 1 << 16) / spec.vision.token_side();
  MR_RETURN_IF_ERROR(keys.status());
  if (spec.window > 0) return spec;
  return error(Code::corrupt, "clip.vision.window_size is less than a token's {} pixels", spec.vision.token_side());
}

/// No layers: a token's pixels are projected. Source: Hugging Face transformers' Gemma4UnifiedVisionEmbedder.
Expected<TowerSpec> read_bare(Keys& keys, TowerSpec spec) {
  spec.dim = keys.required("vision.embedding_length", 8, kMostDim);
  spec.out_dim = keys.required("vision.projection_dim", 1, 1 << 20);
  spec.eps = static_cast<float>(keys.optional_float("vision.attention.layer_norm_epsilon", 1e-6, 0, 1));
  spec.heads = 1;  // of what no layer keeps
  spec.head_dim = 8;
  MR_RETURN_IF_ERROR(keys.status());
  return spec;
}

}  // namespace

Expected<TowerSpec> read_tower_spec(const modelfile::Model& mmproj) {
  TowerSpec spec;
  MR_ASSIGN_OR_RETURN(spec.vision, vision::read_spec(mmproj));
  Keys keys(mmproj);
  if (spec.vision.projector == Projector::gemma4u) return read_bare(keys, spec);
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
      return read_windowed_layers(keys, spec);
    case Projector::pixtral:
      spec.rope = TowerRope::alternating;
      spec.layer_norms = false;
      spec.gated = true;
      return spec;
    case Projector::gemma4:
      spec.rope = TowerRope::by_half_heads;
      spec.layer_norms = false;
      spec.gated = true;
      spec.norms_heads = spec.norms_results = true;
      spec.scales_scores = false;
      spec.activation = Activation::gelu;  // the file does not say so
      spec.quick_gelu = false;
      return spec;
    case Projector::internvl:
      // The tower of 6 billion weights has other norms than those of 300 million.
      spec.layer_norms = mmproj.find("v.blk.0.ln1.bias") != nullptr;
      spec.norms_queries = mmproj.find("v.blk.0.attn_q_norm.weight") != nullptr;
      if (spec.activation == Activation::gelu) spec.activation = Activation::gelu_erf;
      return spec;
    case Projector::lfm2:
      spec.between = Between::centres;
      return spec;
    case Projector::glm4v:
      // The key has the projector's.
      if (const auto* const up = mmproj.find("v.blk.0.ffn_up.weight"); up != nullptr && up->rows() <= kMostDim)
        spec.ff_dim = up->rows();
      spec.rope = TowerRope::halves;
      spec.between = Between::bicubic;
      spec.layer_norms = false;
      spec.gated = true;
      spec.activation = Activation::silu;  // older files name another
      spec.quick_gelu = false;
      return spec;
    case Projector::kimivl:
      spec.rope = TowerRope::in_turn;
      spec.between = Between::bicubic;
      return spec;
    case Projector::gemma3:
    case Projector::gemma4u:
    case Projector::idefics3:
      return spec;
  }
  return spec;
}

TowerBuilder::TowerBuilder(const modelfile::Model& mmproj, const TowerSpec& spec)
    : file_(mmproj), spec_(spec), units_(mmproj, tower_.units) {
  tower_.spec = spec.vision;
  tower_.layers = spec.layers;
  tower_.dim = spec.dim;
  tower_.window = spec.window;
  tower_.between = spec.between;
  tower_.patch_cols = 3 * spec.vision.patch * spec.vision.patch;
}

TowerBuilder::Norm TowerBuilder::norm(const std::string& stem, std::int64_t cols) {
  return {units_.vector(stem + ".weight", cols), units_.optional_vector(stem + ".bias", cols)};
}

void TowerBuilder::normalize(Act out, Act x, const Norm& norm, bool layer_norm) {
  if (layer_norm) return ops_.layer_norm(out, x, norm.weight, norm.bias, spec_.eps);
  ops_.rms_norm(out, x, norm.weight, spec_.eps);
}

void TowerBuilder::normalize(Act x, const std::string& stem) {
  constexpr float kEps = 1e-5f;  // no key has it
  const Norm by = norm(stem, ops_.cols(x));
  ops_.layer_norm(x, x, by.weight, by.bias, kEps);
}

exec::Product TowerBuilder::product(Act out, const std::string& stem, std::int64_t cols, std::int64_t rows) {
  return {out, units_.unscaled(stem + ".weight", cols, rows), units_.optional_vector(stem + ".bias", rows)};
}

/// A tensor of one number, which becomes part of the program.
float TowerBuilder::number(const std::string& name, float fallback) {
  const modelfile::TensorInfo* const tensor = file_.find(name);
  if (tensor == nullptr) return fallback;
  units_.ignore(name);
  float value = 0;
  const auto read = [&]() -> Status {
    if (tensor->dtype != DType::f32 || tensor->bytes != sizeof(value))
      return error(Code::corrupt, "{} is no number in float32", name);
    if (files_.empty()) {
      MR_ASSIGN_OR_RETURN(files_, modelfile::open_files(file_.paths()));
    }
    MR_RETURN_IF_ERROR(files_[static_cast<std::size_t>(tensor->file)].read_at(
        tensor->offset, std::as_writable_bytes(std::span(&value, 1))));
    return std::isnan(value) ? error(Code::corrupt, "{} is no number; fetch the file again", name) : Status();
  };
  if (status_.ok()) status_ = read();
  return value;
}

/// `name`: a product's, and ".input" or ".output".
Bounds TowerBuilder::bounds(const std::string& name) {
  const Bounds none;
  Bounds read;
  read.least = number(name + "_min", none.least);
  read.most = number(name + "_max", none.most);
  if (read.least > read.most && status_.ok())
    status_ = error(Code::corrupt, "{}_min is {}, more than {}_max, {}", name, read.least, name, read.most);
  return read;
}

bool TowerBuilder::has_bounds(const std::string& stem) const {
  return std::ranges::any_of(std::array{"input_min", "input_max", "output_min", "output_max"},
                             [&](const char* bound) { return file_.find(stem + "." + bound) != nullptr; });
}

/// out = W x (+ b), as wide as both buffers are; x and the result clamped where the file says so.
void TowerBuilder::multiply(Act out, const std::string& stem, Act x) {
  const Bounds of_input = bounds(stem + ".input"), of_result = bounds(stem + ".output");
  if (of_input.any()) {
    const bool merged = ops_.rows(x) == Rows::merged;
    const Act clamped =
        ops_.buffer(merged ? "clamped tokens" : "clamped", ops_.cols(x), merged ? Rows::merged : Rows::worked);
    ops_.copy(clamped, x);
    ops_.clamp(clamped, of_input.least, of_input.most);
    x = clamped;
  }
  const exec::Product made = product(out, stem, ops_.cols(x), ops_.cols(out));
  ops_.matmul(std::span(&made, 1), x);
  if (of_result.any()) ops_.clamp(out, of_result.least, of_result.most);
}

/// Finds the learned places, rows of which are handed to a pass.
void TowerBuilder::list_places() {
  const modelfile::TensorInfo* const table = file_.find("v.position_embd.weight");
  const bool by_lines = spec_.vision.projector == Projector::gemma4 || spec_.vision.projector == Projector::gemma4u;
  const bool has_class = spec_.vision.projector == Projector::internvl;
  if (table == nullptr) {
    if ((by_lines || has_class) && status_.ok()) status_ = file_.require("v.position_embd.weight").status();
    return;
  }
  units_.ignore("v.position_embd.weight");
  const std::int64_t rows = table->rows();
  if (by_lines) {
    tower_.table_lines = rows / 2;
    if (table->cols() == spec_.dim && table->shape.size() == 3 && table->shape[2] == 2 && rows > 0) return;
    status_ = error(Code::corrupt, "v.position_embd.weight is {} x {}, no two tables of places in {} channels",
                    table->cols(), rows, spec_.dim);
    return;
  }
  tower_.has_class = has_class;
  if (tower_.has_class) {
    units_.ignore("v.class_embd");
    units_.ignore("v.patch_embd.bias");
  }
  const std::int64_t places = rows - (tower_.has_class ? 1 : 0);
  tower_.table_side = std::llround(std::sqrt(static_cast<double>(std::max<std::int64_t>(0, places))));
  if (table->cols() != spec_.dim || tower_.table_side * tower_.table_side != places || tower_.table_side < 1 ||
      tower_.table_side > kMostSide)
    status_ = error(Code::corrupt, "v.position_embd.weight is {} x {}, no square of places in {} channels",
                    table->cols(), rows, spec_.dim);
}

/// The patches, and the embeddings of their places.
void TowerBuilder::take_patches(Act patch) {
  if (!tower_.has_places()) return ops_.given(patch);
  const Act given = ops_.buffer("given", tower_.patch_cols + spec_.dim);
  place_ = ops_.buffer("place", spec_.dim);
  ops_.given(given);
  ops_.pick_heads(patch, given, 1, tower_.patch_cols, 0);
  ops_.pick_heads(place_, given, 1, spec_.dim, tower_.patch_cols);
}

/// x = norm(norm(W norm(patch) + b) + the embedding of its place), which is all that such a tower has.
void TowerBuilder::embed_normed() {
  const Act patch = ops_.buffer("patch", tower_.patch_cols);
  begin_unit();
  take_patches(patch);
  normalize(patch, "v.patch_norm.1");
  multiply(x_, "v.patch_embd", patch);
  normalize(x_, "v.patch_norm.2");
  ops_.add(x_, place_);
  normalize(x_, "v.patch_norm.3");
  units_.end();
}

/// x = W patch (+ b) + the embedding of its place. Of two filters, a film's frames, a picture has both. Beside a class,
/// which is no patch, places have the bias in them (tower_input()).
void TowerBuilder::embed() {
  const std::int64_t dim = spec_.dim, side = spec_.vision.patch;
  const Act patch = ops_.buffer("patch", tower_.patch_cols);
  begin_unit();
  const exec::Product first{x_, units_.filters("v.patch_embd.weight", side, 3, dim),
                            tower_.has_class ? WeightRef() : units_.optional_vector("v.patch_embd.bias", dim)};
  const bool film = units_.has("v.patch_embd.weight.1");
  const exec::Product second{h_, film ? units_.filters("v.patch_embd.weight.1", side, 3, dim) : WeightRef(), {}};
  take_patches(patch);
  ops_.matmul(std::span(&first, 1), patch);
  if (film) ops_.matmul(std::span(&second, 1), patch);
  if (film) ops_.add(x_, h_);
  if (units_.has("v.norm_embd.weight")) normalize(x_, x_, norm("v.norm_embd", dim), spec_.layer_norms);
  if (tower_.has_places()) ops_.add(x_, place_);
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

void TowerBuilder::turn_heads(Act q, Act k, Act v, const std::string& stem) {
  if (spec_.norms_heads) {
    ops_.rms_norm_heads(q, units_.vector(stem + "attn_q_norm.weight", spec_.head_dim), spec_.head_dim, spec_.eps);
    ops_.rms_norm_heads(k, units_.vector(stem + "attn_k_norm.weight", spec_.head_dim), spec_.head_dim, spec_.eps);
    ops_.rms_norm_heads(v, {}, spec_.head_dim, spec_.eps);
  }
  if (spec_.norms_queries) {
    ops_.rms_norm(q, q, units_.vector(stem + "attn_q_norm.weight", ops_.cols(q)), spec_.eps);
    ops_.rms_norm(k, k, units_.vector(stem + "attn_k_norm.weight", ops_.cols(k)), spec_.eps);
  }
  for (const int rope : ropes_)
    for (const Act heads : {q, k}) ops_.rope(heads, spec_.heads, spec_.head_dim, rope);
}

/// x += h, what attention or the feed-forward gave, each channel scaled in some models.
void TowerBuilder::add_result(const std::string& norm_stem, const std::string& scale) {
  if (spec_.norms_results) normalize(h_, h_, norm(norm_stem, spec_.dim), spec_.layer_norms);
  if (units_.has(scale)) ops_.standardize(h_, {}, units_.vector(scale, spec_.dim));
  ops_.add(x_, h_);
}

void TowerBuilder::layer(int index) {
  ops_.begin_layer();
  begin_unit(index);
  attend(index);
  feed_forward(index);
  units_.end();
}

/// x += W_out attention(rope(W_q h), rope(W_k h), W_v h), h = norm(x), among all patches.
void TowerBuilder::attend(int index) {
  const std::int64_t width = spec_.heads * spec_.head_dim;
  const std::string stem = fmt::format("v.blk.{}.", index);
  const Act q = ops_.buffer("q", width, Rows::whole), k = ops_.buffer("k", width), v = ops_.buffer("v", width),
            attended = ops_.buffer("attended", width);
  ops_.begin_block();
  normalize(h_, x_, norm(stem + "ln1", spec_.dim), spec_.layer_norms);
  if (has_bounds(stem + "attn_q") || has_bounds(stem + "attn_k") || has_bounds(stem + "attn_v")) {
    multiply(q, stem + "attn_q", h_);
    multiply(k, stem + "attn_k", h_);
    multiply(v, stem + "attn_v", h_);
  } else {
    std::array<exec::Product, 3> qkv{exec::Product{q, {}, {}}, {k, {}, {}}, {v, {}, {}}};
    list_projections(stem, qkv);
    ops_.matmul(qkv, h_);
  }
  turn_heads(q, k, v, stem);
  ops_.store_kv(0, k, v);
  ops_.begin_block();  // all rows' keys are stored before one attends
  exec::Attention attention;
  attention.heads = attention.kv_heads = spec_.heads;
  attention.head_dim = spec_.head_dim;
  attention.scale = spec_.scales_scores ? 1.0f / std::sqrt(static_cast<float>(spec_.head_dim)) : 1.0f;
  attention.causal = false;
  attention.segments =
      tower_.has_class || (spec_.window > 0 && (spec_.full_every == 0 || (index + 1) % spec_.full_every != 0));
  ops_.attention(attended, q, 0, attention);
  multiply(h_, stem + "attn_out", attended);
  add_result(stem + "attn_post_norm", stem + "ls1.weight");
}

/// x += W_down (act(W_gate h) * W_up h), or W_down act(W_up h), h = norm(x).
void TowerBuilder::feed_forward(int index) {
  const std::string stem = fmt::format("v.blk.{}.", index);
  const Act hidden = ops_.buffer("hidden", spec_.ff_dim);
  ops_.begin_block();
  normalize(h_, x_, norm(stem + "ln2", spec_.dim), spec_.layer_norms);
  if (spec_.gated) {
    if (units_.has(stem + "ffn_gate.bias") || has_bounds(stem + "ffn_gate") || has_bounds(stem + "ffn_up")) {
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
  add_result(stem + "ffn_post_norm", stem + "ls2.weight");
}

void TowerBuilder::activate(Act x) {
  if (!spec_.quick_gelu) return ops_.activate(x, spec_.activation);
  const Act gate = ops_.buffer("quick", ops_.cols(x));
  ops_.copy(gate, x);
  ops_.scale(gate, 1.702f);
  ops_.sigmoid_gate(x, gate);
}

Expected<Tower> TowerBuilder::build(std::uint64_t tile_bytes) {
  list_places();
  const std::int64_t merge = spec_.vision.merge * spec_.vision.merge;
  ops_.merge_by(merge);
  kv::LayerKv kept{kv::Keeps::attention, spec_.heads, spec_.head_dim, spec_.head_dim};
  ops_.keep(kv::Layout(std::span(&kept, 1)));
  for (exec::Rope& rope : tower_ropes(spec_)) ropes_.push_back(ops_.add_rope(std::move(rope)));
  x_ = ops_.buffer("x", spec_.dim, Rows::whole);
  h_ = ops_.buffer("h", spec_.dim);
  if (spec_.vision.projector == Projector::gemma4u)
    embed_normed();
  else
    embed();
  for (int index = 0; index < spec_.layers; ++index) {
    layer(index);
    if (units_.has(fmt::format("v.deepstack.{}.fc1.weight", index))) added_.push_back(deepstack(index, x_));
  }
  project();
  units_.ignore("v.token_embd.img_break");  // the decoder's own embeddings have it
  units_.refuse_unused_of({"v.", "mm."}, {"mm.a."});
  MR_RETURN_IF_ERROR(status_);
  MR_RETURN_IF_ERROR(units_.status());
  MR_ASSIGN_OR_RETURN(tower_.program, ops_.finish());
  tower_.units.cut(tile_bytes);
  return std::move(tower_);
}

}  // namespace millrace::model

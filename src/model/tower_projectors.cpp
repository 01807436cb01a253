// What a tower makes of its last layer's rows, and of those that decoders take further rows from: a family's projector
// each (tower_layers.h).
#include <fmt/format.h>

#include <cmath>
#include <span>

#include "model/tower_layers.h"

namespace millrace::model {

using exec::Act;
using exec::Rows;
using kernels::Activation;
using vision::Projector;

/// W2 gelu(W1 x).
Act TowerBuilder::two_products(const std::string& first, const std::string& second, Act x, std::int64_t hidden) {
  const Act inner = ops_.buffer("projector", hidden, Rows::merged),
            out = ops_.buffer(second, spec_.out_dim, Rows::merged);
  multiply(inner, first, x);
  ops_.activate(inner, Activation::gelu_erf);
  multiply(out, second, inner);
  return out;
}

/// A token's patches side by side.
Act TowerBuilder::merged_rows(Act x, bool by_channel) {
  const Act merged = ops_.buffer("merged", spec_.dim * ops_.merged_rows(), Rows::merged);
  ops_.merge_rows(merged, x, by_channel);
  return merged;
}

/// What a layer gives beside the last one's: columns that the decoder adds behind one of its first layers.
Act TowerBuilder::deepstack(int index, Act before) {
  const std::string stem = fmt::format("v.deepstack.{}.", index);
  begin_unit(index);
  ops_.begin_block();
  const Act merged = merged_rows(before);
  const std::int64_t wide = ops_.cols(merged);
  normalize(merged, merged, norm(stem + "norm", wide), true);
  const Act out = two_products(stem + "fc1", stem + "fc2", merged, wide);
  units_.end();
  return out;
}

/// Qwen's: norm, then a token's patches side by side through two products.
Act TowerBuilder::merge_by_norm_and_two() {
  normalize(x_, x_, norm("v.post_ln", spec_.dim), spec_.layer_norms);
  const Act merged = merged_rows(x_);
  return two_products("mm.0", "mm.2", merged, ops_.cols(merged));
}

/// Pixtral's: two products; before them, where patches are merged, a norm and a matrix of a token's patches.
Act TowerBuilder::merge_by_matrix() {
  if (units_.has("mm.input_norm.weight")) normalize(x_, x_, norm("mm.input_norm", spec_.dim), false);
  const Act merged = merged_rows(x_, true);
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

/// Gemma 4's: the mean of a token's patches, as long as the width is wide, each channel moved and scaled in some
/// models, a norm without a weight, and a matrix.
Act TowerBuilder::merge_by_scaled_mean() {
  const Act token = ops_.buffer("token", spec_.dim, Rows::merged),
            out = ops_.buffer("out", spec_.out_dim, Rows::merged);
  ops_.mean_rows(token, x_);
  if (spec_.vision.projector == Projector::gemma4) ops_.scale(token, std::sqrt(static_cast<float>(spec_.dim)));
  if (units_.has("v.std_bias") || units_.has("v.std_scale"))
    ops_.standardize(token, units_.vector("v.std_bias", spec_.dim), units_.vector("v.std_scale", spec_.dim));
  ops_.rms_norm_heads(token, {}, spec_.dim, spec_.eps);
  multiply(out, "mm.input_projection", token);
  return out;
}

/// Rows of a matrix whose columns are known; 1 where it is none, which naming it then refuses.
std::int64_t TowerBuilder::rows_of(const std::string& matrix) {
  constexpr std::int64_t kMost = 1 << 20;
  const modelfile::TensorInfo* const tensor = file_.find(matrix);
  const std::int64_t rows = tensor == nullptr ? 1 : tensor->rows();
  if (rows >= 1 && rows <= kMost) return rows;
  if (status_.ok()) status_ = error(Code::corrupt, "{} has {} rows, which no projector has", matrix, rows);
  return 1;
}

/// InternVL's and LFM2's: a norm of a token's patches, and two products.
Act TowerBuilder::merge_by_norm_of_all(const std::string& stem, const std::string& first, const std::string& second) {
  if (units_.has("v.post_ln.weight")) normalize(x_, x_, norm("v.post_ln", spec_.dim), spec_.layer_norms);
  const Act merged = merged_rows(x_);
  if (units_.has(stem + ".weight")) normalize(merged, stem);
  return two_products(first, second, merged, rows_of(first + ".weight"));
}

/// Idefics3's: a norm of each patch, and one product of a token's.
Act TowerBuilder::merge_by_one() {
  normalize(x_, x_, norm("v.post_ln", spec_.dim), spec_.layer_norms);
  const Act out = ops_.buffer("out", spec_.out_dim, Rows::merged);
  multiply(out, "mm.model.fc", merged_rows(x_));
  return out;
}

/// Kimi's: two norms of each patch, and two products of a token's.
Act TowerBuilder::merge_by_norm_of_each() {
  normalize(x_, x_, norm("v.post_ln", spec_.dim), spec_.layer_norms);
  normalize(x_, "mm.input_norm");
  return two_products("mm.1", "mm.2", merged_rows(x_), rows_of("mm.1.weight"));
}

/// GLM's: filters over a token's patches, a product, a norm, and a gated feed-forward.
Act TowerBuilder::merge_by_filters() {
  const std::int64_t side = spec_.vision.merge, dim = spec_.out_dim, hidden = rows_of("mm.gate.weight");
  const Act token = ops_.buffer("token", dim, Rows::merged), normed = ops_.buffer("normed", dim, Rows::merged),
            inner = ops_.buffer("projector", hidden, Rows::merged), out = ops_.buffer("out", dim, Rows::merged);
  normalize(x_, x_, norm("v.post_ln", spec_.dim), spec_.layer_norms);
  const Act merged = merged_rows(x_, true);
  const exec::Product filtered{token, units_.filters("mm.patch_merger.weight", side, spec_.dim, dim),
                               units_.optional_vector("mm.patch_merger.bias", dim)};
  ops_.matmul(std::span(&filtered, 1), merged);
  multiply(normed, "mm.model.fc", token);
  normalize(normed, "mm.post_norm");
  ops_.activate(normed, Activation::gelu_erf);
  const WeightRef gate = units_.unscaled("mm.gate.weight", dim, hidden);
  ops_.matmul_gated(inner, gate, units_.unscaled("mm.up.weight", dim, hidden), normed, spec_.activation);
  multiply(out, "mm.down", inner);
  return out;
}

Act TowerBuilder::merge() {
  switch (spec_.vision.projector) {
    case Projector::pixtral:
      return merge_by_matrix();
    case Projector::gemma3:
      return merge_by_mean();
    case Projector::gemma4:
    case Projector::gemma4u:
      return merge_by_scaled_mean();
    case Projector::internvl:
      return merge_by_norm_of_all("mm.model.mlp.0", "mm.model.mlp.1", "mm.model.mlp.3");
    case Projector::lfm2:
      return merge_by_norm_of_all("mm.input_norm", "mm.1", "mm.2");
    case Projector::idefics3:
      return merge_by_one();
    case Projector::kimivl:
      return merge_by_norm_of_each();
    case Projector::glm4v:
      return merge_by_filters();
    case Projector::qwen2vl:
    case Projector::qwen25vl:
    case Projector::qwen3vl:
      break;
  }
  return merge_by_norm_and_two();
}

void TowerBuilder::project() {
  ops_.begin_layer();
  ops_.begin_block();
  begin_unit();
  Act out = merge();
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

}  // namespace millrace::model

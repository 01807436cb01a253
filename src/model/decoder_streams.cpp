// Several residual streams and the learned residual beside attention: their weights, in the order in which a pass uses
// them, and their steps.
#include <fmt/format.h>

#include <cmath>

#include "model/decoder_impl.h"

namespace millrace::model {

using exec::Rows;
using residency::UnitKind;

namespace {

constexpr float kLeastSquares = 1e-5f;  // of what is brought to another's magnitude: the mean of its squares

}  // namespace

/// A unit of the matrices of all streams but the first, which lie one after the other in one tensor.
std::vector<WeightRef> Decoder::list_between_streams(UnitBuilder& units, const std::string& name) const {
  const std::int64_t dim = hp_.model_dim, others = spec_.streams - 1;
  std::vector<WeightRef> matrices;
  units.begin(UnitKind::trunk);
  for (std::int64_t i = 0; i < others; ++i) matrices.push_back(units.slice(name, dim, dim, others, i, dim, {0, dim}));
  units.end();
  return matrices;
}

void Decoder::list_prediction(UnitBuilder& units, int index, LayerWeights& weights) const {
  const std::int64_t count = spec_.streams;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  weights.streams.predict_norm = units.vector(name("altup_router_norm.weight"), hp_.model_dim);
  weights.streams.predict_router = units.matrix(name("altup_router.weight"), hp_.model_dim, count);
  weights.streams.predict = units.matrix(name("altup_predict_coef.weight"), count, count * count);
}

void Decoder::list_correction(UnitBuilder& units, int index, LayerWeights& weights) const {
  const std::int64_t count = spec_.streams;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  weights.streams.correct_norm = units.vector(name("altup_router_norm.weight"), hp_.model_dim);
  weights.streams.correct_router = units.matrix(name("altup_router.weight"), hp_.model_dim, count);
  weights.streams.correct = units.matrix(name("altup_correct_coef.weight"), count, count);
  weights.streams.first_scale = units.vector(name("altup_correct_scale.weight"), hp_.model_dim);
}

/// Of gated streams: STEM_norm, STEM_down, STEM_inject where it writes, STEM_up.
StreamWeigher Decoder::list_gates(UnitBuilder& units, const std::string& stem, bool writes) const {
  const std::int64_t all = spec_.streams * hp_.model_dim;
  StreamWeigher weigher;
  weigher.norm = units.vector(stem + "_norm.weight", all);
  weigher.down = units.matrix(stem + "_down.weight", all, spec_.stream_rank);
  if (writes) weigher.inject = units.matrix(stem + "_inject.weight", all, spec_.streams);
  weigher.up = units.matrix(stem + "_up.weight", spec_.stream_rank, all);
  return weigher;
}

/// STEM_fn, STEM_scale and STEM_base. writes: else what it makes is for reading alone.
StreamWeigher Decoder::list_weigher(UnitBuilder& units, const std::string& stem, bool writes) const {
  if (gates()) return list_gates(units, stem, writes);
  const std::int64_t columns = writes ? spec_.weighing.whole() : spec_.streams;
  StreamWeigher weigher;
  weigher.matrix = units.unscaled(stem + "_fn.weight", spec_.streams * hp_.model_dim, columns);
  weigher.scales = units.vector(stem + "_scale.weight", columns == spec_.streams ? 1 : 3);
  weigher.bias = units.vector(stem + "_base.weight", columns);
  return weigher;
}

/// What stands between the layers and the last norm.
void Decoder::list_streams_end(UnitBuilder& units) {
  if (predicts()) merged_streams_ = list_between_streams(units, "altup_unembd_proj.weight");
  if (!connects()) return;
  units.begin(UnitKind::trunk);
  last_weigher_ = list_weigher(units, "output_hc", false);
  units.end();
}

/// x = what a block reads of all streams, by weights that follow from them. With a weigher of a layer, the weights of
/// what write_streams() does are left, too.
void Decoder::read_streams(const StreamWeigher& weigher) {
  if (gates()) return read_gated(weigher);
  const std::int64_t count = spec_.streams, dim = hp_.model_dim;
  const bool last = weigher.matrix == last_weigher_.matrix;
  const Act normed = ops_.buffer("normalised streams", count * dim);
  const Act weights = ops_.buffer("weights of streams", last ? count : spec_.weighing.whole());
  ops_.copy(normed, streams_);
  ops_.rms_norm_heads(normed, {}, count * dim, eps());
  ops_.matmul(weights, weigher.matrix, normed);
  ops_.weigh_streams(weights, weigher.scales, weigher.bias, spec_.weighing);
  if (last) return ops_.sum_streams(x_, streams_, weights, dim);
  const Act reads = ops_.buffer("reads of streams", count);
  ops_.pick_heads(reads, weights, 1, count, 0);
  ops_.sum_streams(x_, streams_, reads, dim);
}

/// The same of gated ones: with u = norm(stream) of each, the mean of u * sigmoid(W_up silu(W_down u / streams)). The
/// weights of writing are 2 sigmoid(W_inject u / streams).
void Decoder::read_gated(const StreamWeigher& weigher) {
  const std::int64_t count = spec_.streams, dim = hp_.model_dim;
  const float each = 1.0f / static_cast<float>(count);
  const Act normed = ops_.buffer("normalised streams", count * dim), by = ops_.buffer("gates of streams", count * dim);
  const Act low = ops_.buffer("low streams", spec_.stream_rank), writes = ops_.buffer("writes of streams", count);
  const exec::Product products[] = {{low, weigher.down, {}}, {writes, weigher.inject, {}}};
  const bool is_last = weigher.inject.none();
  ops_.copy(normed, streams_);
  ops_.rms_norm_heads(normed, weigher.norm, dim, eps());
  ops_.matmul(std::span(products).first(is_last ? 1 : 2), normed);
  ops_.scale(low, each);
  ops_.activate(low, kernels::Activation::silu);
  ops_.matmul(by, weigher.up, low);
  ops_.sigmoid_gate(normed, by);
  ops_.sum_streams(x_, normed, {}, dim, each);
  if (is_last) return;
  ops_.scale(writes, each);
  ops_.weigh_writes(writes);
}

/// Each stream = a sum of all (itself, of gated ones), + a weight times what the block gives.
void Decoder::write_streams(Act result) {
  const std::int64_t count = spec_.streams, dim = hp_.model_dim;
  if (gates()) return ops_.add_streams(streams_, result, ops_.buffer("writes of streams", count), dim, 0);
  const Act weights = ops_.buffer("weights of streams", spec_.weighing.whole()),
            writes = ops_.buffer("writes of streams", count), stays = ops_.buffer("what stays", count * count),
            before = ops_.buffer("normalised streams", count * dim);  // which nobody reads any more
  ops_.pick_heads(writes, weights, 1, count, count);
  ops_.pick_heads(stays, weights, 1, count * count, 2 * count);
  ops_.copy(before, streams_);
  ops_.sum_streams(streams_, before, stays, dim);
  ops_.add_streams(streams_, result, writes, dim, 0);
}

/// Connected: each is x. Predicted: the first is x, the others are matrices' products with it, of its magnitude.
void Decoder::open_streams() {
  const std::int64_t dim = hp_.model_dim;
  streams_ = ops_.buffer("streams", spec_.streams * dim, Rows::whole);
  if (connects()) return ops_.sum_streams(streams_, x_, {}, dim, 1);
  const Act other = ops_.buffer("other stream", dim);
  Act open = x_;
  for (std::int64_t i = 1; i < spec_.streams; ++i) {
    const bool last = i == spec_.streams - 1;
    const Act wider = last ? streams_ : ops_.buffer(fmt::format("first {} streams", i + 1), (i + 1) * dim);
    ops_.matmul(other, opened_streams_[static_cast<std::size_t>(i - 1)], x_);
    ops_.match_rms(other, x_, kLeastSquares);
    ops_.join(wider, open, other);
    open = wider;
  }
}

/// tanh(W norm(x) / model_dim): a number for each stream.
Act Decoder::route_streams(WeightRef norm, WeightRef router) {
  const Act routed = ops_.buffer("routed streams", spec_.streams);
  ops_.rms_norm(h_, x_, norm, eps());
  ops_.scale(h_, 1.0f / static_cast<float>(hp_.model_dim));
  ops_.matmul(routed, router, h_);
  ops_.cap(routed, 1);
  return routed;
}

/// Each stream += a sum of all, by weights that the first one's router gives; x = the first.
void Decoder::predict_streams(std::int64_t index) {
  const StreamWeights& weights = layers_[static_cast<std::size_t>(index)].streams;
  const std::int64_t count = spec_.streams, dim = hp_.model_dim;
  const Act before = ops_.buffer("streams before", count * dim), by = ops_.buffer("weights of streams", count * count);
  ops_.copy(before, streams_);
  ops_.pick_heads(x_, before, 1, dim, 0);
  ops_.matmul(by, weights.predict, route_streams(weights.predict_norm, weights.predict_router));
  ops_.add_streams(streams_, before, by, dim, 0);
  ops_.pick_heads(x_, streams_, 1, dim, 0);
}

/// x is what the layer made of the first one: each += (1 + w) (x - first), w being what x's router gives.
void Decoder::correct_streams(std::int64_t index) {
  const StreamWeights& weights = layers_[static_cast<std::size_t>(index)].streams;
  const Act by = ops_.buffer("corrections", spec_.streams);
  ops_.matmul(by, weights.correct, route_streams(weights.correct_norm, weights.correct_router));
  ops_.pick_heads(h_, streams_, 1, hp_.model_dim, 0);
  ops_.add(x_, h_, -1);
  ops_.add_streams(streams_, x_, by, hp_.model_dim, 1);
}

/// Connected: x = what the head reads of them. Predicted: the mean of the first and of matrices' products with the
/// others, of its magnitude.
void Decoder::merge_streams() {
  const std::int64_t dim = hp_.model_dim;
  if (connects()) {
    ops_.begin_block();
    return read_streams(last_weigher_);
  }
  const Act other = ops_.buffer("other stream", dim), merged = ops_.buffer("merged stream", dim);
  ops_.begin_block();
  ops_.pick_heads(h_, streams_, 1, dim, 0);
  ops_.copy(x_, h_);
  for (std::int64_t i = 1; i < spec_.streams; ++i) {
    ops_.pick_heads(other, streams_, 1, dim, i * dim);
    ops_.matmul(merged, merged_streams_[static_cast<std::size_t>(i - 1)], other);
    ops_.match_rms(merged, h_, kLeastSquares);
    ops_.add(x_, merged);
  }
  ops_.scale(x_, 1.0f / static_cast<float>(spec_.streams));
}

/// h + norm(W_up W_down h), h being what attention reads.
Act Decoder::laurel(std::int64_t index) {
  const LayerWeights& layer = layers_[static_cast<std::size_t>(index)];
  const Act low = ops_.buffer("low laurel", spec_.layers[static_cast<std::size_t>(index)].laurel_rank);
  const Act result = ops_.buffer("laurel", hp_.model_dim);
  ops_.matmul(low, layer.laurel_down, h_);
  ops_.matmul(result, layer.laurel_up, low);
  ops_.rms_norm(result, result, layer.laurel_norm, eps());
  ops_.add(result, h_);
  return result;
}

}  // namespace millrace::model

#include "exec/ops.h"

#include <algorithm>
#include <utility>

namespace millrace::exec {

using Kind = Step::Kind;

Act Ops::buffer(const std::string& name, std::int64_t cols, Rows rows) {
  for (std::size_t b = 0; b < program_.buffers.size(); ++b) {
    const Buffer& known = program_.buffers[b];
    if (known.name != name || known.cols != cols) continue;
    MR_ASSERT(known.rows == rows);
    return {static_cast<std::int32_t>(b)};
  }
  program_.buffers.push_back({name, cols, rows});
  return {static_cast<std::int32_t>(program_.buffers.size() - 1)};
}

int Ops::add_rope(Rope rope) {
  program_.ropes.push_back(std::move(rope));
  return static_cast<int>(program_.ropes.size() - 1);
}

void Ops::begin_block() {
  if (program_.blocks.empty() || program_.blocks.back() != program_.steps.size())
    program_.blocks.push_back(program_.steps.size());
}

Step& Ops::record(Kind kind) {
  if (program_.steps.empty()) begin_block();
  Step& step = program_.steps.emplace_back();
  step.kind = kind;
  step.for_hidden = for_hidden_;
  return step;
}

void Ops::embed(Act out, WeightRef table, float factor) {
  Step& step = record(Kind::embed);
  step.factor = factor;
  step.out = out;
  step.weight = table;
}

void Ops::embed_positions(Act out, WeightRef table) {
  embed(out, table);
  program_.steps.back().row_of = RowOf::position;
}

void Ops::embed_types(Act out, WeightRef table) {
  embed(out, table);
  program_.steps.back().row_of = RowOf::type;
}

void Ops::embed_ngrams(Act out, WeightRef table, std::int64_t layer, const Ngrams& ngrams) {
  Step& step = record(Kind::embed_ngrams);
  step.out = out;
  step.weight = table;
  step.layer = layer;
  step.ngrams = ngrams;
}

void Ops::embed_with_pictures(Act out, WeightRef table, float factor) {
  embed(out, table, factor);
  program_.steps.back().by_picture = true;
}

void Ops::add_picture(Act x, Act scratch, std::int64_t first) {
  Step& step = record(Kind::add_picture);
  step.out = step.a = x;
  step.products[0].out = scratch;  // none of the step's products: what was in it is not read
  step.first = first;
}

void Ops::merge_rows(Act out, Act x, bool by_channel) {
  Step& step = record(Kind::merge_rows);
  step.by_channel = by_channel;
  step.out = out;
  step.a = x;
}

void Ops::mean_rows(Act out, Act x) {
  Step& step = record(Kind::mean_rows);
  step.out = out;
  step.a = x;
}

void Ops::rms_norm(Act out, Act x, WeightRef weight, float eps) {
  Step& step = record(Kind::rms_norm);
  step.out = out;
  step.a = x;
  step.weight = weight;
  step.eps = eps;
}

void Ops::layer_norm(Act out, Act x, WeightRef weight, WeightRef bias, float eps) {
  Step& step = record(Kind::layer_norm);
  step.out = out;
  step.a = x;
  step.weight = weight;
  step.weight2 = bias;
  step.eps = eps;
}

void Ops::rms_norm_heads(Act x, WeightRef weight, std::int64_t head_dim, float eps) {
  Step& step = record(Kind::rms_norm_heads);
  step.out = step.a = x;
  step.weight = weight;
  step.head_dim = head_dim;
  step.eps = eps;
}

void Ops::add(Act x, Act y, float factor) {
  Step& step = record(Kind::add);
  step.out = step.a = x;
  step.b = y;
  step.factor = factor;
}

void Ops::scale(Act x, float factor) {
  Step& step = record(Kind::scale);
  step.out = step.a = x;
  step.factor = factor;
}

void Ops::scale(Act x, WeightRef scalar, WeightRef bias) {
  Step& step = record(Kind::scale);
  step.out = step.a = x;
  step.weight = scalar;
  step.weight2 = bias;
}

void Ops::clamp(Act x, float least, float most) {
  Step& step = record(Kind::clamp);
  step.out = step.a = x;
  step.least = least;
  step.most = most;
}

void Ops::largest(Act out, Act x) {
  Step& step = record(Kind::largest);
  step.out = out;
  step.a = x;
}

void Ops::cap(Act x, float most) {
  Step& step = record(Kind::cap);
  step.out = step.a = x;
  step.cap = most;
}

void Ops::statistical_top_k(Act x, float deviations) {
  Step& step = record(Kind::statistical_top_k);
  step.out = step.a = x;
  step.factor = deviations;
}

void Ops::match_rms(Act x, Act like, float least) {
  Step& step = record(Kind::match_rms);
  step.out = step.a = x;
  step.b = like;
  step.least = least;
}

void Ops::add_streams(Act out, Act x, Act weights, std::int64_t dim, float plus, std::int64_t first) {
  Step& step = record(Kind::add_streams);
  step.out = step.a = out;
  step.b = x;
  step.c = weights;
  step.head_dim = dim;
  step.factor = plus;
  step.first = first;
}

void Ops::standardize(Act x, WeightRef bias, WeightRef scale) {
  Step& step = record(Kind::standardize);
  step.out = step.a = x;
  step.weight = bias;
  step.weight2 = scale;
}

void Ops::copy(Act out, Act x) {
  Step& step = record(Kind::copy);
  step.out = out;
  step.a = x;
}

WeightRef Ops::scale_of(WeightRef weight) const {
  const auto found = scales_.find({weight.unit, weight.part});
  return found == scales_.end() ? WeightRef{} : found->second;
}

void Ops::matmul(std::span<const Product> products, Act x) {
  const auto is_scaled = [this](const Product& product) { return !scale_of(product.weight).none(); };
  if (products.size() > 1 && std::any_of(products.begin(), products.end(), is_scaled)) {
    // One after the other, because a scale lies behind its matrix and weights are used in their order.
    for (std::size_t i = 0; i < products.size(); ++i) matmul(products.subspan(i, 1), x);
    return;
  }
  Step& step = record(Kind::matmul);
  step.a = x;
  MR_ASSERT(products.size() <= step.products.size());
  step.product_count = static_cast<int>(products.size());
  std::copy(products.begin(), products.end(), step.products.begin());
  if (products.size() != 1 || !is_scaled(products[0])) return;
  step.products[0].bias = {};
  scale(products[0].out, scale_of(products[0].weight), products[0].bias);
}

void Ops::matmul_heads(Act out, WeightRef weight, Act x, std::int64_t heads, HeadWeights form) {
  Step& step = record(Kind::matmul_heads);
  step.out = out;
  step.a = x;
  step.weight = weight;
  step.heads = heads;
  step.head_weights = form;
}

void Ops::matmul_gated(Act out, WeightRef gate, WeightRef up, Act x, kernels::Activation activation, float limit) {
  if (!scale_of(gate).none() || !scale_of(up).none()) {
    const Buffer like = program_.buffer(out);
    const Act factors = buffer("scaled up", like.cols, like.rows);
    matmul(out, gate, x);
    matmul(factors, up, x);
    return this->gate(out, factors, 0, activation, limit);
  }
  Step& step = record(Kind::gated);
  step.activation = activation;
  step.limit = limit;
  step.out = out;
  step.a = x;
  step.weight = gate;
  step.weight2 = up;
}

void Ops::gate(Act x, Act all, std::int64_t layer, kernels::Activation activation, float limit) {
  Step& step = record(Kind::gate);
  step.activation = activation;
  step.limit = limit;
  step.out = step.a = x;
  step.b = all;
  step.layer = layer;
}

void Ops::temper(Act x, const Temperature& temperature) {
  Step& step = record(Kind::temper);
  step.out = step.a = x;
  step.temperature = temperature;
}

void Ops::rope(Act x, std::int64_t heads, std::int64_t head_dim, int rope, bool back) {
  Step& step = record(Kind::rope);
  step.out = step.a = x;
  step.heads = heads;
  step.head_dim = head_dim;
  step.rope = rope;
  step.back = back;
}

void Ops::store_kv(std::int64_t layer, Act k, Act v) {
  Step& step = record(Kind::store_kv);
  step.a = k;
  step.b = v;
  step.layer = layer;
}

void Ops::store_latent(std::int64_t layer, Act c, Act rotated) {
  Step& step = record(Kind::store_latent);
  step.a = c;
  step.b = rotated;
  step.layer = layer;
}

void Ops::store_index(std::int64_t layer, Act key) {
  Step& step = record(Kind::store_index);
  step.a = key;
  step.layer = layer;
}

void Ops::select(Act selected, Act q, Act weights, std::int64_t layer, const Indexer& indexer) {
  Step& step = record(Kind::select);
  step.out = selected;
  step.a = q;
  step.b = weights;
  step.layer = layer;
  step.indexer = indexer;
}

void Ops::attention(Act out, Act q, std::int64_t layer, const Attention& attention, Act selected) {
  Step& step = record(Kind::attention);
  step.out = out;
  step.a = q;
  step.b = selected;
  step.layer = layer;
  step.attention = attention;
}

void Ops::pick_heads(Act out, Act x, std::int64_t heads, std::int64_t head_dim, std::int64_t first) {
  Step& step = record(Kind::pick_heads);
  step.out = out;
  step.a = x;
  step.heads = heads;
  step.head_dim = head_dim;
  step.first = first;
}

void Ops::multiply(Act x, Act y) {
  Step& step = record(Kind::multiply);
  step.out = step.a = x;
  step.b = y;
}

void Ops::sigmoid_gate(Act x, Act gate) {
  Step& step = record(Kind::sigmoid_gate);
  step.out = step.a = x;
  step.b = gate;
}

void Ops::softplus_gate(Act x, Act gate) {
  Step& step = record(Kind::softplus_gate);
  step.out = step.a = x;
  step.b = gate;
}

void Ops::l2_norm_heads(Act x, std::int64_t heads, std::int64_t head_dim, float eps) {
  Step& step = record(Kind::l2_norm_heads);
  step.out = step.a = x;
  step.heads = heads;
  step.head_dim = head_dim;
  step.eps = eps;
}

void Ops::decay(Act x, WeightRef a, WeightRef bias, float bound) {
  Step& step = record(Kind::decay);
  step.out = step.a = x;
  step.weight = a;
  step.weight2 = bias;
  step.least = bound;
}

void Ops::convolve(Act out, Act x, WeightRef taps, std::int64_t layer, const Convolution& convolution) {
  Step& step = record(Kind::convolve);
  step.out = out;
  step.a = x;
  step.weight = taps;
  step.weight2 = convolution.bias;
  step.layer = layer;
  step.convolution = convolution;
}

void Ops::delta_rule(Act out, Act qkv, Act beta, Act decay, std::int64_t layer, const DeltaRule& rule) {
  Step& step = record(Kind::delta_rule);
  step.out = out;
  step.a = qkv;
  step.b = beta;
  step.c = decay;
  step.layer = layer;
  step.delta_rule = rule;
}

void Ops::time_step(Act decay, Act step, WeightRef a, WeightRef bias) {
  Step& recorded = record(Kind::time_step);
  recorded.out = decay;
  recorded.a = step;
  recorded.weight = a;
  recorded.weight2 = bias;
}

void Ops::scan(Act out, Act x, Act step, Act decay, std::int64_t layer, WeightRef skip, const Scan& scan) {
  Step& recorded = record(Kind::scan);
  recorded.out = out;
  recorded.a = x;
  recorded.b = step;
  recorded.c = decay;
  recorded.layer = layer;
  recorded.weight = skip;
  recorded.scan = scan;
}

void Ops::selective_scan(Act out, Act x, Act step, Act keys, std::int64_t layer, WeightRef skip, WeightRef a,
                         const Scan& scan) {
  this->scan(out, x, step, keys, layer, skip, scan);
  program_.steps.back().weight2 = a;
}

void Ops::activate(Act x, kernels::Activation activation) {
  Step& step = record(Kind::activate);
  step.out = step.a = x;
  step.activation = activation;
}

void Ops::activate(Act x, const kernels::Xielu& shape) {
  Step& step = record(Kind::activate);
  step.out = step.a = x;
  step.xielu = shape;
}

void Ops::moe(Act out, Act x, Act routed, WeightRef router, std::int64_t layer, const Experts& experts,
              std::int64_t first) {
  Step& step = record(Kind::moe);
  step.out = out;
  step.a = x;
  step.b = routed;
  step.weight = router;
  step.layer = layer;
  step.experts = experts;
  step.first = first;
}

void Ops::compress(Act inputs, Act gates, std::int64_t layer, WeightRef norm, WeightRef bias,
                   const Compressor& compressor) {
  Step& step = record(Kind::compress);
  step.a = inputs;
  step.b = gates;
  step.layer = layer;
  step.weight = norm;
  step.weight2 = bias;
  step.compressor = compressor;
}

void Ops::sum_streams(Act out, Act x, Act weights, std::int64_t dim, float plus) {
  add_streams(out, x, weights, dim, plus);
  program_.steps.back().from_zero = true;
  program_.steps.back().a = {};
}

void Ops::weigh_streams(Act x, WeightRef scales, WeightRef bias, const StreamWeighing& weighing) {
  Step& step = record(Kind::weigh_streams);
  step.out = step.a = x;
  step.weight = scales;
  step.weight2 = bias;
  step.weighing = weighing;
}

void Ops::weigh_writes(Act x) { weigh_streams(x, {}, {}, {.streams = cols(x)}); }

void Ops::gate_streams(Act out, Act x, Act y, std::int64_t dim) {
  Step& step = record(Kind::gate_streams);
  step.out = out;
  step.a = x;
  step.b = y;
  step.head_dim = dim;
}

void Ops::select_logit_rows(Act out, Act x) {
  Step& step = record(Kind::select_rows);
  step.out = out;
  step.a = x;
}

void Ops::logits(WeightRef head, WeightRef bias, Act x, float factor, float cap) {
  if (const WeightRef by = scale_of(head); !by.none()) scale(x, by);  // what the logits should be multiplied by
  Step& step = record(Kind::logits);
  step.factor = factor;
  step.cap = cap;
  step.a = x;
  step.weight = head;
  step.weight2 = bias;
}

void Ops::gather_logits(WeightRef head, WeightRef bias, Act own, Act x, std::int64_t first, std::int64_t vocab,
                        float factor, float cap) {
  logits(head, bias, x, factor, cap);
  Step& step = program_.steps.back();
  step.out = own;
  step.first = first;
  step.vocab = vocab;
}

/// The step does nothing by itself: that it reads x in floats makes the step that writes x leave them there.
void Ops::hidden(Act x) { record(Kind::hidden).a = x; }

void Ops::tap(std::int64_t tap, Act x) {
  Step& step = record(Kind::hidden);
  step.a = x;
  step.first = 1 + tap;
}

void Ops::given(Act out) { record(Kind::given).out = out; }

void Ops::join(Act out, Act x, Act y) {
  Step& step = record(Kind::join);
  step.out = out;
  step.a = x;
  step.b = y;
}

void Ops::gather(Act out, Act x, std::int64_t first) {
  Step& step = record(Kind::gather);
  step.out = out;
  step.a = x;
  step.first = first;
}

Expected<Program> Ops::finish() const {
  MR_RETURN_IF_ERROR(program_.check());
  return program_;
}

}  // namespace millrace::exec

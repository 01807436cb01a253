// The interface that a model's code calls: named ops over buffers and weights, both of which are handles. A call does
// not compute; it records a step of the model's Program when the model is loaded. An executor runs the program in every
// pass.
//
// Each weight, except norms and a tied head, is used at most once per pass and in the order of the unit table, because
// weights stream in that order. Activations are float32 [rows, cols] in named buffers.
// Thread-safety: one thread calls.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "exec/program.h"

namespace millrace::exec {

class Ops {
 public:
  /// A buffer of `cols` floats per row; the same name gives the same buffer. REQUIRES: equal cols and rows then.
  Act buffer(const std::string& name, std::int64_t cols, Rows rows = Rows::worked);
  /// What a sequence stores for the layers that store_kv() and attention() name.
  void keep(kv::Layout layout) { program_.layout = std::move(layout); }
  /// Angles for rope(): its index.
  int add_rope(Rope rope);

  /// Multiplies products with `weight` by `scale`, a float32 vector of one, in a separate step after each product,
  /// which also adds the product's bias. Not for products by heads. Must be called before the products are recorded.
  void scale_products(WeightRef weight, WeightRef scale) { scales_[{weight.unit, weight.part}] = scale; }

  /// Begins a block, which uses only buffers of the whole pass from earlier blocks. The first block needs no call.
  void begin_block();
  /// Begins a layer, or the part after the last layer.
  void begin_layer() { program_.layers.push_back(program_.steps.size()); }
  /// The steps between these calls run only in passes whose final states are requested.
  void begin_hidden() { for_hidden_ = true; }
  void end_hidden() { for_hidden_ = false; }

  void embed(Act out, WeightRef table, float factor = 1);  // rows of the batch's tokens, decoded
  /// The same, but rows of pictures take the picture's embedding, without the factor. In other embeddings, they take
  /// token 0's.
  void embed_with_pictures(Act out, WeightRef table, float factor);
  /// x += columns [first, first + x's cols) of the picture's embedding, in rows of pictures; other rows are unchanged.
  /// scratch: a buffer of x's cols, whose rows may be overwritten.
  void add_picture(Act x, Act scratch, std::int64_t first);
  void embed_positions(Act out, WeightRef table);  // rows of their positions
  void embed_types(Act out, WeightRef table);      // rows of their types
  /// Of each token the rows of `table` that its n-grams read, one behind the other. The layout's layer `layer` keeps
  /// the tokens before the pass: a state of order - 1 columns of one channel. A program has one such table.
  void embed_ngrams(Act out, WeightRef table, std::int64_t layer, const Ngrams& ngrams);
  void rms_norm(Act out, Act x, WeightRef weight, float eps);  // out may be x
  /// (x - mean) / sqrt(variance + eps) * weight + bias, without a bias where it is none(). out may be x.
  void layer_norm(Act out, Act x, WeightRef weight, WeightRef bias, float eps);
  /// Normalises each head in place; weight: [head_dim], or [cols] if each head has its own, or none().
  void rms_norm_heads(Act x, WeightRef weight, std::int64_t head_dim, float eps);
  void add(Act x, Act y, float factor = 1);  // x += factor * y
  void scale(Act x, float factor);           // x *= factor
  /// x = x * scalar, a float32 vector of one; then + bias, a vector of x's cols, if there is one. Rounds in between.
  void scale(Act x, WeightRef scalar, WeightRef bias = {});
  void add_vector(Act x, WeightRef vector) { scale(x, {}, vector); }  // to each row; one of x's cols
  void clamp(Act x, float least, float most);                         // x = min(max(x, least), most)
  void largest(Act out, Act x);                                       // out, of one column = the largest of x's row
  void cap(Act x, float most);                                        // x = most * tanh(x / most)
  /// What lies far above a row's others stays: x = max(x - (mean + deviations * standard deviation), 0), both of the
  /// row. Source: Spark Transformer (arXiv:2506.06644), statistical top-k.
  void statistical_top_k(Act x, float deviations);
  /// Each part of x that is as wide as `like` gets the size of it: x *= rms(like) / sqrt(max(mean of x's squares,
  /// least)).
  void match_rms(Act x, Act like, float least);
  /// Of buffers that are streams of `dim` columns, one after the other: out's stream first + i += the sum over x's
  /// streams j, ascending, of (weights[i * x's streams + j] + plus) * stream j, each term by one fma. weights: a column
  /// for each pair of streams; without them: 0.
  void add_streams(Act out, Act x, Act weights, std::int64_t dim, float plus, std::int64_t first = 0);
  /// The same from zero: what out's streams hold is not read.
  void sum_streams(Act out, Act x, Act weights, std::int64_t dim, float plus = 0);
  /// In place, with x's columns as StreamWeighing says and s being `scales`: reads become sigmoid(s0 x + bias) + eps,
  /// writes 2 sigmoid(s1 x + bias), and the rest, [source, target], softmax over targets of (s2 x + bias), + eps,
  /// divided by (sum over sources + eps), then iterations - 1 times by the sums over targets and over sources; it is
  /// left as [target, source]. Where x has `streams` columns it is reads alone. scales: float32 [3], or [1]; bias: x's
  /// cols.
  void weigh_streams(Act x, WeightRef scales, WeightRef bias, const StreamWeighing& weighing);
  /// The same of weights for writing alone, without scales and bias: x = 2 sigmoid(x).
  void weigh_writes(Act x);
  /// out, a column a stream = sigmoid(r(s)), s being the product of the stream in x and in y, of `dim` columns each,
  /// over sqrt(dim), and r(s) its sign times the root of max(|s|, 1e-6).
  void gate_streams(Act out, Act x, Act y, std::int64_t dim);
  /// x = (x - bias) * scale, both float32 vectors of x's cols; x * scale where bias is none().
  void standardize(Act x, WeightRef bias, WeightRef scale);
  void copy(Act out, Act x);
  /// Products of one input with up to three weights (Q, K, V), the input prepared once.
  void matmul(std::span<const Product> products, Act x);
  void matmul(Act out, WeightRef weight, Act x) {
    const Product product{out, weight, {}};
    matmul(std::span(&product, 1), x);
  }
  /// Multiplies each head by its matrix. Head h of out is the product with the first k channels of head h of x,
  /// followed by the remaining channels of that head. weight: [heads * n, k], the heads' matrices one after another; or
  /// [n, k], the first one. Transposed: n channels of x give k, the sum of the matrix's rows, each times its channel.
  void matmul_heads(Act out, WeightRef weight, Act x, std::int64_t heads, HeadWeights form = {});
  /// out = activation(x * gate^T) * (x * up^T). limit: of Activation::limited and bounded.
  void matmul_gated(Act out, WeightRef gate, WeightRef up, Act x, kernels::Activation activation, float limit = 0);
  /// x = activation(x) * the layer's channels of `all`: [layer * cols, (layer + 1) * cols), cols being those of x.
  void gate(Act x, Act all, std::int64_t layer, kernels::Activation activation, float limit = 0);
  /// x *= the temperature of its row's position.
  void temper(Act x, const Temperature& temperature);
  /// Rotates each head of x by the angles of its row's position; back: by the opposite ones.
  void rope(Act x, std::int64_t heads, std::int64_t head_dim, int rope, bool back = false);
  void store_kv(std::int64_t layer, Act k, Act v);  // at each row's position
  /// For layers that store latents: the channels of c, then those of `rotated`, if there is one.
  void store_latent(std::int64_t layer, Act c, Act rotated = {});
  /// Stores index keys at each row's position, in layers that have them.
  void store_index(std::int64_t layer, Act key);
  /// selected = the positions that each row's attention sees, ascending, top_k of them, as int32 in the floats' place;
  /// rows that see no more than top_k have nothing written. A position s scores the sum over heads h, ascending, of
  /// weights[h] * max(0, q_h . k_s), k_s being its index key; of equal scores the lower position is chosen. q: heads *
  /// head_dim, weights: heads. `selected`: a buffer of top_k. With Indexer::block, without weights: for each head the
  /// blocks' numbers, [heads, top_k], of those that hold the greatest q_h . k_s, and always the `local` nearest ones;
  /// ties: the lower number. `selected`: a buffer of indexer.choices().
  void select(Act selected, Act q, Act weights, std::int64_t layer, const Indexer& indexer);
  /// Stores the inputs and gates of each row, and makes the compressed rows that the pass completes, in the layout's
  /// layer `layer`. inputs, gates: compressor.given() columns. bias: float32 [ratio * given()]; norm: float32 [dim].
  /// Compressor::mean: there are neither gates nor a bias.
  /// select() chooses among compressed rows where Indexer::ratio is theirs.
  void compress(Act inputs, Act gates, std::int64_t layer, WeightRef norm, WeightRef bias,
                const Compressor& compressor);
  /// selected: the output of select(), if attention.selected is not 0. A row with at most that many keys attends to
  /// all.
  void attention(Act out, Act q, std::int64_t layer, const Attention& attention, Act selected = {});
  /// out's head h = the channels from `first` on, head_dim of them, of the h-th of `heads` equal parts of x.
  void pick_heads(Act out, Act x, std::int64_t heads, std::int64_t head_dim, std::int64_t first);
  void multiply(Act x, Act y);  // x *= y, element by element
  /// x *= 1 / (1 + e^-gate); gate has x's cols, or fewer, each of as many neighbours: a head's, or the whole row's.
  void sigmoid_gate(Act x, Act gate);
  /// x *= ln(1 + e^gate); gate likewise.
  void softplus_gate(Act x, Act gate);
  /// The first `heads` heads of each row, in place: divided by sqrt(sum of squares + eps).
  void l2_norm_heads(Act x, std::int64_t heads, std::int64_t head_dim, float eps);
  /// x = e^(a * ln(1 + e^(x + bias))): what a state keeps of itself. bias: float32 of x's cols; a: likewise, or fewer,
  /// each for as many neighbours. With a bound, which is below 0: x = e^(bound / (1 + e^(-|a| (x + bias)))).
  void decay(Act x, WeightRef a, WeightRef bias, float bound = 0);
  /// A causal convolution of each channel with the layer's taps, float32 [channels, taps] as one vector, over the
  /// sequence's last inputs, which the layer keeps (kernels/recurrent.h). out: x itself, or a buffer of all channels
  /// that the layer keeps, in which x's begin at convolution.first.
  void convolve(Act out, Act x, WeightRef taps, std::int64_t layer, const Convolution& convolution);
  /// The gated delta rule over the layer's states (kernels/recurrent.h). qkv: [query heads | key heads | value heads],
  /// the first two normalised; beta: a column a value head; decay: likewise, or one for each key channel of each value
  /// head. beta goes through a sigmoid, maybe in place.
  void delta_rule(Act out, Act qkv, Act beta, Act decay, std::int64_t layer, const DeltaRule& rule);
  /// step = ln(1 + e^(step + bias)) and decay = e^(a * step), a and bias as decay() has them.
  void time_step(Act decay, Act step, WeightRef a, WeightRef bias);
  /// The selective scan over the layer's states (kernels/recurrent.h). x: [heads' values | of each group what writes |
  /// of each group what reads]; step and decay: a column a head; skip: float32 [heads].
  void scan(Act out, Act x, Act step, Act decay, std::int64_t layer, WeightRef skip, const Scan& scan);
  /// Mamba's. x, step, out: [channels]; keys: [what writes | what reads]; a: [channels x keys]; out is not x.
  void selective_scan(Act out, Act x, Act step, Act keys, std::int64_t layer, WeightRef skip, WeightRef a,
                      const Scan& scan);
  void activate(Act x, kernels::Activation activation);  // x = activation(x) * 1
  void activate(Act x, const kernels::Xielu& shape);
  /// out = sum over the chosen experts, in the router's order, of weight * expert(x). The router's choice among
  /// routed * router^T (+ bias) is as Experts says (ties: the smaller index). Experts on their way are computed when
  /// they come; results are stored and then summed in the router's order. routed: mostly x itself.
  /// first: of a shard (Experts::own_hidden), which of an expert's hidden channels are its first.
  void moe(Act out, Act x, Act routed, WeightRef router, std::int64_t layer, const Experts& experts,
           std::int64_t first = 0);
  /// Keeps only the rows whose logits are requested. `out` is a buffer of such rows.
  void select_logit_rows(Act out, Act x);
  /// Writes the head product, plus its bias if it is not none(), times `factor`, capped at `cap` (cap * tanh(logit /
  /// cap); 0: no cap), to the logits of the pass; x is a buffer of rows whose logits are requested.
  void logits(WeightRef head, WeightRef bias, Act x, float factor = 1, float cap = 0);
  /// The same where the head is rows of a larger one, the first of them being `first` of `vocab`: `own`, a buffer of
  /// rows that want logits, takes their products, and the logits are gathered.
  void gather_logits(WeightRef head, WeightRef bias, Act own, Act x, std::int64_t first, std::int64_t vocab,
                     float factor, float cap);
  /// Declares that x, a buffer of the whole pass, holds the final states of all rows, after the last norm; no later op
  /// may write it.
  void hidden(Act x);
  /// Hands over x likewise, in passes whose final states are requested: number `tap` of what Executor::read_tap()
  /// reads.
  void tap(std::int64_t tap, Act x);

  /// out = the pass's additional input (kv::Batch::given).
  void given(Act out);
  /// Rows::merged has one row for each `rows` rows of a pass; the pass's rows are a multiple of it.
  void merge_by(std::int64_t rows) { program_.merge = rows; }
  std::int64_t merged_rows() const { return program_.merge; }
  std::int64_t cols(Act act) const { return program_.buffer(act).cols; }
  Rows rows(Act act) const { return program_.buffer(act).rows; }
  /// out, of Rows::merged = those rows of x concatenated, with that many times the columns. by_channel: channel 0 of
  /// all rows first, then channel 1, and so on.
  void merge_rows(Act out, Act x, bool by_channel = false);
  /// The same, but their mean.
  void mean_rows(Act out, Act x);
  /// out = each row of x followed by the same row of y.
  void join(Act out, Act x, Act y);
  /// out = the parts of x that all devices sharing this program computed, concatenated; this device's part begins at
  /// column `first`. If no step since the previous gather reads or writes `out`, other devices may store to it before
  /// this device reaches the gather; otherwise all devices synchronise first.
  void gather(Act out, Act x, std::int64_t first);

  /// The recorded program, after a check. Errors: internal.
  Expected<Program> finish() const;

 private:
  Step& record(Step::Kind kind);
  WeightRef scale_of(WeightRef weight) const;

  Program program_;
  std::map<std::pair<std::int32_t, std::int32_t>, WeightRef> scales_;  // by unit and part of the weight
  bool for_hidden_ = false;
};

}  // namespace millrace::exec

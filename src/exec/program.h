// The work of a pass as a value: steps in order over named buffers, and the borders of the blocks that a window of rows
// passes through at once. A model's layers are recorded once, when the model is loaded (exec/ops.h); an executor
// (exec/executor.h) runs the program for every pass, and refuses at load time a program with steps that it cannot run.
// Thread-safety: immutable once recorded.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "exec/ngrams.h"
#include "kernels/kernels.h"
#include "kv/layout.h"
#include "residency/unit.h"

namespace millrace::exec {

using residency::WeightRef;

/// A named buffer of activations. Only the executor knows its address.
struct Act {
  std::int32_t buffer = -1;  // index into Program::buffers
  friend bool operator==(const Act&, const Act&) = default;
};

/// The rows of a pass that a buffer holds.
enum class Rows : std::uint8_t {
  worked,  // the rows of the current window; the contents end with the block
  whole,   // all rows: what one block passes to the next, such as the residual stream
  logits,  // the rows whose logits are requested
  merged,  // one row for each Program::merge rows of the pass
};

struct Buffer {
  std::string name;
  std::int64_t cols = 0;
  Rows rows = Rows::worked;
};

/// How a router's scores become the experts' weights. The numbers are those of the GGUF key expert_gating_func, which
/// has none for the last.
enum class Gating : std::uint8_t {
  softmax = 1,         // of all scores, then the largest are chosen
  sigmoid = 2,         // of each score
  softmax_chosen = 3,  // the largest scores are chosen, then softmax of those
  sqrt_softplus = 4,   // sqrt(ln(1 + e^x)) of each score. Source: DeepSeek-V4 (2026)
  sparse_mixer = 255,  // the largest scores are chosen; each one's share of a softmax over those not yet chosen that
                       // come within 2 % of it. Source: GRIN (arXiv:2409.12136)
};

/// Rotary position embedding: angles of position p are p * inv_freq.
struct Rope {
  std::vector<float> inv_freq;  // [rotary / 2], scaling already applied
  std::int64_t rotary = 0;      // channels of a head that are rotated, its first
  bool neox = false;            // pairs (i, i + rotary / 2) instead of (2i, 2i + 1)
  float magnitude = 1;          // multiplies cos and sin (YaRN's attention factor)
  bool last = false;            // a head's last channels are rotated instead of its first
  /// [rotary / 2]: by which of a row's places each angle goes (kv::PictureRow::shift); empty: all go by its position.
  std::vector<std::uint8_t> axes = {};
  std::int64_t offset = 0;  // angles and keys are those of so many positions behind the row's
};
constexpr std::uint8_t kRopeAxes = 3;

/// The factor of queries by their position: 1 + scale * ln(floor((position + offset) / period) + 1).
struct Temperature {
  float scale = 0;
  std::int64_t period = 1;  // positions
  std::int64_t offset = 0;  // likewise
  float at(std::int64_t position) const;
};

struct Attention {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;
  std::int64_t window = 0;  // 0: all keys
  WeightRef sinks;          // float32 [heads]: the scores of one more key whose value is zero; none() if there is none
  std::int64_t latent_values = 0;  // keys are latents, and their first so many channels the values; 0: they are apart
  std::int64_t value_dim = 0;      // channels of a head's value where they are apart; 0: head_dim
  std::int64_t selected = 0;       // keys that a token sees at most, which Step::b names; 0: it sees all
  float cap = 0;                   // scaled scores become cap * tanh(score / cap); 0: they stay
  std::vector<float> slopes = {};  // [heads]: what scores lose for each token between key and query; empty: nothing
  // False: a token also sees later keys, and a window extends to both sides. Then all rows of a sequence are in one
  // pass.
  bool causal = true;
  // Not causal: a row sees only its segment, which ends PictureRow::ahead rows after it and begins after the last row
  // of the segment before.
  bool segments = false;
  // Causal: a picture's row also sees the later rows of its picture (PictureRow::ahead).
  bool whole_pictures = true;
  // Causal, with a window: positions are cut into chunks as long as it, and a row sees those of its own chunk. Then
  // whole_pictures is false.
  bool chunks = false;
  // Over latents with a window: beside it, a token sees the compressed rows that this layer of the layout keeps, as far
  // as they are complete, or those `selected` that Step::b names. All share one softmax. -1: none.
  std::int64_t rows = -1;
  // Where `selected` is not 0: Step::b names blocks of so many tokens, for each KV head its own, so that the token sees
  // those of them that are not behind it; 0: tokens.
  std::int64_t selected_block = 0;
  // The blocks are the same for all KV heads, and those that Step::b names are complete; the token also sees the tokens
  // behind the last complete one.
  bool sees_tail = false;

  /// The most keys that a token sees where `selected` is not 0.
  std::int64_t most_selected() const { return sees_tail ? selected + selected_block - 1 : selected; }
  std::int64_t v_dim() const { return latent_values > 0 ? latent_values : value_dim > 0 ? value_dim : head_dim; }
  /// Whether rows may see later keys.
  bool sees_ahead() const { return latent_values == 0 && (!causal || whole_pictures); }
  /// Whether a row sees the same keys in both.
  bool sees_as(const Attention& other) const {
    return window == other.window && causal == other.causal && segments == other.segments && chunks == other.chunks;
  }
};

/// Whether blocks of so many tokens can be chosen: whole blocks of the cache, in a chunk of the keys that a kernel
/// takes.
constexpr bool is_index_block(std::int64_t tokens) {
  return tokens > 0 && tokens % kv::kBlockTokens == 0 && kernels::kAttentionChunk % tokens == 0;
}

/// Sparse attention: a token sees the earlier tokens whose index keys have the highest scores; ties: the earlier.
/// Source: DeepSeek-V3.2 (arXiv:2512.02556), section 2.1. With `block`, each index head chooses whole blocks of tokens
/// for a KV head of its own; source: MiniMax-M3's model card (2026). Without weights of heads a key's score is the sum
/// over heads of max(0, q_h . k).
struct Indexer {
  std::int64_t heads = 0, head_dim = 0;  // of the index queries, which share a token's index key
  std::int64_t top_k = 0;                // tokens that are chosen; one that has no more before it sees all
  std::int64_t ratio = 1;                // tokens to a key: rows of so many are chosen, of those that are complete
  std::int64_t block = 0;  // tokens to a block, of which top_k are chosen: is_index_block(); 0: tokens are
  std::int64_t local = 0;  // the nearest blocks, the token's own among them, which always are

  /// Numbers that say what a token sees.
  std::int64_t choices() const { return block > 0 ? heads * top_k : top_k; }
  /// The most keys that a token sees.
  std::int64_t keys() const { return block > 0 ? block * top_k : top_k; }
};

/// Makes one row of every `ratio` tokens. A token gives given() inputs and as many gates; a gate has a bias that
/// depends on the token's place in its row. Channel c of a row is the sum of its tokens' inputs of that channel, each
/// weighted by a softmax over their gates of that channel. The row is then normalised, and rotated by the position of
/// its first token. With `overlaps` a token gives twice the channels: the first half belongs to the next row and the
/// second half to the token's own, so that a row is made of 2 * ratio tokens. Source: DeepSeek-V4 (2026), sections
/// 2.3.1 and 2.3.2. With `mean` there are no gates, and a row is the mean of its tokens' inputs; it is rotated by its
/// first token's places, which pictures shift. Source: Qwen3.8-Flash-Next's model card (2026).
struct Compressor {
  std::int64_t ratio = 0;  // tokens to a row: kv::is_ratio()
  std::int64_t dim = 0;    // channels of a row
  bool overlaps = false;
  bool mean = false;
  std::int64_t inputs = -1;  // the layer of the layout (Keeps::inputs) that has what tokens give, gates behind inputs
  bool index = false;        // rows are the index keys of the layer of the step, else its latents
  int rope = 0;              // index into Program::ropes: turns a row's last channels
  float eps = 0;             // of the norm

  std::int64_t given() const { return overlaps ? 2 * dim : dim; }  // channels that a token gives
  /// Numbers that are kept of a token: inputs and gates; with `mean` inputs and by axis the shift of its place.
  std::int64_t kept() const { return mean ? given() + kRopeAxes : 2 * given(); }
  std::int64_t window() const { return overlaps ? 2 * ratio : ratio; }  // tokens that a row is made of
};

constexpr std::int64_t kMostStreams = 16;

/// The weights by which a part of a layer reads and writes n residual streams (hyper-connections), for each row: n for
/// reading, then n for writing, then n * n that mix the streams. The head only reads, by n weights. Without iterations
/// they are n for writing alone.
/// Source: Manifold-Constrained Hyper-Connections (DeepSeek-V4, section 2.2).
struct StreamWeighing {
  std::int64_t streams = 0;
  std::int64_t iterations = 0;  // of Sinkhorn and Knopp, after which sums over sources and over targets are nearly 1
  float eps = 0;                // added to weights for reading, and to the sums that others are divided by

  std::int64_t whole() const { return (2 + streams) * streams; }  // columns
};

/// The layout of the matrices of a product by heads.
struct HeadWeights {
  bool parts = false;  // one part of the unit per matrix, beginning with the weight named; else rows of that weight
  bool transposed = false;  // head h multiplies by the transpose of its matrix
  friend bool operator==(const HeadWeights&, const HeadWeights&) = default;
};

struct Product {
  Act out;
  WeightRef weight;
  WeightRef bias;  // none() if there is none; float32 [weight rows]
};

/// A causal convolution of each channel with its last inputs.
struct Convolution {
  std::int64_t taps = 0;      // including the current input's
  WeightRef bias;             // float32 [channels]; none() if there is none
  bool silu = false;          // applies SiLU to the results
  std::int64_t first = 0;     // the first of its channels, where several convolutions of a layer share them out
  std::int64_t dilation = 1;  // inputs from a tap to the next

  std::int64_t columns() const { return (taps - 1) * dilation; }  // last inputs that it reads
};

/// Heads of a gated delta rule: value_heads / key_heads of them share a query and a key.
struct DeltaRule {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;  // dims of a head
  bool tiled = false;  // value head h reads key head h % key_heads, instead of neighbours sharing one
  float scale = 1;     // of the queries

  std::int64_t key_head_of(std::int64_t value_head) const {
    return tiled ? value_head % key_heads : value_head / (value_heads / key_heads);
  }
  std::int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  /// Whether `decays` columns are one for each key channel of each value head, not one for each head.
  bool has_channel_decays(std::int64_t decays) const { return decays == value_heads * key_dim; }
};

/// Heads of a selective scan: heads / groups of them share the vectors that write to and read from their states.
struct Scan {
  std::int64_t heads = 0, head_dim = 0, groups = 0;
  std::int64_t keys = 0;   // channels of a state, for each channel of a head
  bool selective = false;  // Mamba's: of the one head, each channel has a step and a decay for each key

  std::int64_t inner() const { return heads * head_dim; }
  std::int64_t channels() const { return selective ? inner() : inner() + 2 * groups * keys; }
};

constexpr std::int32_t kMostGroups = 64;
constexpr std::int32_t kNoPart = -1;

struct Experts {
  std::int32_t first_unit = 0;  // experts of the layer are units [first_unit, first_unit + count)
  std::int32_t count = 0;
  std::int32_t top_k = 0;
  // Without a gate (kNoPart) an expert is W_down activation(W_up x).
  std::int32_t gate_part = 0, up_part = 1, down_part = 2;
  Gating gating = Gating::softmax;
  // Vectors in float32, none() where there is none; those of experts' products one expert after the other.
  WeightRef router_bias;     // [count], added to the scores
  WeightRef selection_bias;  // [count], added for the choice alone
  // I32 [vocab, top_k]: the experts of each token, which replace the choice; their weights still follow from the
  // scores.
  WeightRef of_tokens;
  WeightRef gate_bias, up_bias, down_bias;  // [count * expert_ff], likewise, [count * model_dim]: all three or none
  WeightRef output_scale;                   // [count], multiplies the weight of a chosen expert last
  WeightRef hidden_scale;  // [count], likewise, behind it: what should multiply its up's products does so here
  WeightRef inner_scale;   // [count], multiplies what an expert's gate gives (or its up, without a gate), before a bias
  WeightRef up_scale, down_scale;  // [count], likewise what its up (beside a gate) and its down give
  // Experts are chosen among the groups_used groups (of `groups`, of neighbours) whose best sum up to most: so many.
  std::int32_t groups = 1, groups_used = 1, group_best = 2;
  bool normalize = true;  // weights of the chosen experts are divided by their sum
  float scale = 1;        // and multiplied by this
  kernels::Activation activation = kernels::Activation::silu;
  float limit = 0;  // of Activation::limited and bounded
  // Of a shard: [rows, top_k * its rows of the gate]: hidden layers before they are gathered, and with them goes
  // Step::first. Biases of gate, up and down are then the shard's rows of each expert's, as far apart as in the file.
  Act own_hidden;

  bool gated() const { return gate_part != kNoPart; }
  std::int32_t first_part() const { return gated() ? gate_part : up_part; }  // of those that x is multiplied by
  bool plain_router() const {
    return gating == Gating::softmax && selection_bias.none() && output_scale.none() && hidden_scale.none() &&
           groups == 1 && of_tokens.none();
  }
};

/// Which value of a batch's row selects the row of a table.
enum class RowOf : std::uint8_t { token, position, type };

/// A recorded call of an op of Ops.
struct Step {
  enum class Kind : std::uint8_t {
    embed,
    rms_norm,
    rms_norm_heads,
    layer_norm,
    add,
    scale,
    copy,
    matmul,
    matmul_heads,
    gated,
    gate,
    temper,
    rope,
    store_kv,
    store_latent,
    store_index,
    select,
    attention,
    moe,
    pick_heads,
    multiply,
    sigmoid_gate,
    l2_norm_heads,
    decay,
    convolve,
    delta_rule,
    time_step,
    scan,
    activate,
    select_rows,
    logits,
    hidden,
    given,
    join,
    gather,
    add_picture,
    merge_rows,
    mean_rows,
    clamp,
    standardize,
    cap,
    statistical_top_k,
    match_rms,
    add_streams,
    largest,
    compress,
    weigh_streams,
    embed_ngrams,
    gate_streams,
    softplus_gate,
  };
  Kind kind = Kind::embed;
  bool for_hidden = false;  // only in passes whose final states are wanted (kv::Batch::wants_hidden)
  // What it writes; what it reads. store_kv: a is k, b is v; store_latent: a stands before b; select: index queries and
  // the weights of their heads; attention: b is what select wrote, where it sees selected keys; moe: b is the router's
  // input; delta_rule: qkv, beta, decay; scan: x, step, decay, or of a selective one what
  // writes and what reads, side by side; time_step: step, and decay is out; add_streams: what is
  // added to, what is added, and weights; compress: inputs and gates; gate_streams: what is compared.
  Act out, a, b, c;
  std::array<Product, 3> products{};
  int product_count = 0;
  // Norms, tables; layer_norm: and a bias; scale: a scalar and a bias; standardize: a bias and a scale; gated: gate and
  // up; moe: the router; logits: the head and its bias; decay, time_step: a and its bias; convolve: taps and bias;
  // scan: the skip's, and a selective one's a; compress: a norm and the gates' bias; weigh_streams: scales and bias.
  WeightRef weight, weight2;
  float eps = 0;
  // embed: of the embeddings; add: of what is added; scale, logits: of them; statistical_top_k: deviations;
  // add_streams: what is added to the weights
  float factor = 1;
  float cap = 0;              // logits, cap: they become cap * tanh(logit / cap); logits: 0: they stay
  float least = 0, most = 0;  // clamp; match_rms: least; decay: its logarithm's bound, 0: none
  kernels::Activation activation = kernels::Activation::silu;  // gated, gate, activate
  float limit = 0;                                             // gated, gate: of Activation::limited and bounded
  std::optional<kernels::Xielu> xielu;                         // activate: in place of the activation
  RowOf row_of = RowOf::token;                                 // embed: which row of its table each takes
  bool by_picture = false;  // embed: rows of pictures have theirs in place of a token's (kv::PictureRow::embedding)
  bool by_channel = false;  // merge_rows: a channel of all rows stands before the next
  std::int64_t heads = 0, head_dim = 0, layer = 0;
  HeadWeights head_weights;
  // pick_heads: channel of a part; add_streams: stream; gather, logits: column where this device's results stand; moe:
  // of hidden layers; add_picture: column of PictureRow::embedding, and products[0].out is memory to work in; hidden:
  // 0, or behind a tap's number
  std::int64_t first = 0;
  std::int64_t vocab = 0;  // logits: of all devices together; 0: the head has all of them
  int rope = 0;            // index into Program::ropes
  bool back = false;       // rope: by the opposite angles
  bool from_zero = false;  // add_streams: what is added to is not read, and begins at 0
  Temperature temperature;
  Attention attention;
  Indexer indexer;
  Compressor compressor;
  StreamWeighing weighing;
  Ngrams ngrams;
  Experts experts;
  Convolution convolution;
  DeltaRule delta_rule;
  Scan scan;

  bool reads(Act act) const { return (a == act || b == act || c == act) && act.buffer >= 0; }
  bool writes(Act act) const;
  std::span<const Product> all_products() const { return {products.data(), static_cast<std::size_t>(product_count)}; }
};
/// "attention": for messages, traces and profilers.
std::string_view name(Step::Kind kind);

struct Program {
  std::vector<Buffer> buffers;
  std::vector<Rope> ropes;
  std::vector<Step> steps;
  /// The first step of each block, ascending from 0. All windows of rows pass through a block, one after another,
  /// before the next block begins, so that a block's weights are fetched once. INVARIANT: of the results of earlier
  /// blocks, a block reads only buffers of the whole pass (check()); the last block has the rows whose logits are
  /// requested.
  std::vector<std::size_t> blocks;
  /// The first step of each layer, ascending, and at the end the first step after the layers; empty: not recorded.
  std::vector<std::size_t> layers;
  /// What a sequence stores for each layer that the steps name; the engine chooses the format and the place.
  kv::Layout layout;
  std::int64_t merge = 1;  // rows of a pass for each row of Rows::merged

  const Buffer& buffer(Act act) const { return buffers[static_cast<std::size_t>(act.buffer)]; }
  /// The end of the block that begins with step `from`.
  std::size_t block_end(std::size_t from) const;
  /// The steps of passes whose final states are requested, or of other passes.
  Program of_passes(bool wants_hidden) const;
  /// The steps before the layers, the first `count` layers, and the steps after the last layer: a smaller model with
  /// the same weights and the same layout. REQUIRES: 0 < count <= layer_count().
  Program first_layers(std::int64_t count) const;
  std::int64_t layer_count() const { return layers.empty() ? 0 : static_cast<std::int64_t>(layers.size()) - 1; }
  /// In order of use; a mixture's experts by number, each as gate, up, down.
  std::vector<WeightRef> weights() const;
  /// Whether each attention over keys and values stands behind the step that turns its queries, stores their keys or
  /// normalises them: a GPU rotates queries there.
  bool turns_queries() const;
  /// Whether angles go by places that pictures shift: rotary places and positions differ behind one.
  bool turns_by_axes() const;
  /// Whether all rows of a sequence go together, are handed to the pass, and none becomes a token: a vision tower.
  bool has_whole_rows() const;
  /// Of each of the attentions whose rows may see keys behind their own, the first of those that see the same.
  std::vector<Attention> sights() const;
  /// Whether a token sees none behind it. False: a text has to be in one pass, and what is behind it can't be guessed.
  bool is_causal() const;
  /// Whether some attention sees chosen tokens whose keys and values are gathered (Attention::sees_tail).
  bool gathers_keys() const;
  /// Whether other devices compute it, too, with rows of their own.
  bool is_shard() const;
  /// Whether a step behind `step` reads `act` before it is written again.
  bool read_behind(std::size_t step, Act act) const;
  /// Errors: internal (what is wrong, with the step's number): a mistake of the one who recorded it.
  Status check() const;

 private:
  Program only(FunctionRef<bool(std::size_t step)> kept) const;
};

/// How large passes may be.
struct PassLimits {
  std::int64_t max_rows = 0;   // tokens in a pass
  std::int64_t work_rows = 0;  // that go through a block at once, the others after them, before the next block comes:
                               // so large is a buffer of worked rows. 0: all. The GPU executor's
  std::int64_t max_sequences = 1;
  std::int64_t max_logit_rows = 0;
  std::int64_t max_positions = 0;  // context
  std::int64_t routed_layers = 0;  // whose experts the pass brings with its rows (exec/routing.h); 0: routers choose
  DType kv_dtype = DType::f16;     // of the sequences: some formats have groups more than the program (kv/layout.h)
  std::int64_t adapters = 0;       // that rows may go through (exec/adapters.h), and
  std::int64_t adapter_rank = 0;   // the largest rank of any of their matrices
};

/// What passes of a program need at most: an executor's memory follows from it, and is not guessed.
struct PassShape : PassLimits {
  std::vector<Buffer> buffers;
  std::int64_t merge = 1;            // Program::merge
  std::vector<std::int64_t> rotary;  // of each rope
  std::int64_t vocab = 0;            // rows of the head: the logits are [max_logit_rows, vocab]
  std::int64_t widest_input = 0;     // largest cols of any product's input, of all heads where each has its own
  std::int64_t widest_output = 0;    // largest rows of any product's matrix, but for the head
  std::int64_t product_steps = 0;    // that multiply by matrices which adapters may change
  std::int64_t latent_dim = 0;       // the most of any layer that keeps latents
  std::int64_t selected = 0;         // the most keys that attention over selected ones sees, and
  std::int64_t selected_bytes = 0;   // what kernels::kAttentionChunk of them take in the cache's format
  std::int64_t index_heads = 0;      // of any indexer
  std::int64_t product_heads = 0;    // the most of any product by heads
  std::int64_t separate_gate = 0;    // most columns of a gate whose up is of another dtype, or that adapters may change
  std::int64_t widest_gate = 0;      // most columns of any gate, experts' among them
  std::int64_t widest_taps =
      0;  // floats of a convolution's, of a selective scan's a, or of the bias of a compressor's gates
  std::int64_t ngram_rows = 0;       // of the table of n-grams, that a token reads
  std::int64_t ngram_row_bytes = 0;  // each of them
  DeltaRule delta_rule;              // the most heads, keys and values of any that has one decay a head
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, group = 0;      // the most of any layer; group: heads / kv_heads
  std::int64_t kv_groups = 0;                                         // each has tables of blocks of its own
  std::int64_t state_groups = 0;                                      // those of them that have states
  std::int64_t experts = 0, top_k = 0, expert_ff = 0, model_dim = 0;  // 0 for dense models; model_dim: experts read it
  std::int64_t routed_dim = 0;                                        // and their routers this
  bool expert_biases = false;                                         // their products have biases
  bool ungated_experts = false;                                       // some have no gate
  bool gathers = false;                                               // Program::is_shard()
  std::int64_t sights = 0;                                            // Program::sights()
  bool causal = true;                                                 // Program::is_causal()
  bool whole_rows = false;                                            // Program::has_whole_rows()
  std::int64_t padded_heads = 0;  // most columns of all heads where keys are kept with more channels than they have
};
PassShape pass_shape(const Program& program, const residency::UnitTable& units, const PassLimits& limits);

}  // namespace millrace::exec

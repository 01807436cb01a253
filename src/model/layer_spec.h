// What each layer of a decoder is, as data: an architecture's file reads a model file's metadata into it, the decoder
// (model/decoder.h) lists the weights and writes the layer. Dimensions are elements; a switch that is off costs
// nothing. Sources: the papers named in each architecture's file; tensor names as in the GGUF specification.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "exec/program.h"
#include "kernels/kernels.h"
#include "kv/layout.h"

namespace millrace::model {

/// Rotary position embedding. Source: RoFormer (arXiv:2104.09864).
struct RopeSpec {
  std::vector<float> inv_freq;          // [rotary / 2], scaling applied
  std::int64_t rotary = 0;              // channels of a head that are rotated, its first
  bool neox = false;                    // pairs (i, i + rotary / 2) instead of (2i, 2i + 1)
  float magnitude = 1;                  // multiplies cos and sin
  bool last = false;                    // a head's last channels are rotated instead of its first
  std::vector<std::uint8_t> axes = {};  // [rotary / 2], or empty: exec::Rope::axes
  float score_growth = 1;               // what all scores are multiplied by (YaRN as DeepSeek has it)
  std::int64_t offset = 0;              // exec::Rope::offset
};

enum class HeadNorm : std::uint8_t {
  none,
  each,      // every head of Q and K by itself
  bare,      // the same without a weight
  together,  // all heads of Q as one vector, and all of K
};

/// Latent attention: keys and values of all heads are made of one latent a token; beside it the heads share the rotated
/// part of their keys. Source: DeepSeek-V2 (arXiv:2405.04434).
struct LatentSpec {
  std::int64_t rank = 0;                // channels of the latent; 0: attention has keys and values of its own
  std::int64_t q_rank = 0;              // of the latent that queries are made of; 0: they are made of the state at once
  std::int64_t rotated = 0, v_dim = 0;  // channels of the shared part of keys; of a head's value
  bool split = true;  // the matrices for keys, transposed, and for values are tensors of their own; else attn_kv_b

  std::int64_t kept() const { return rank + rotated; }
};

/// Which earlier tokens attention sees: exec::Indexer. Over latents, its queries are made of the queries' latent, and
/// its keys go through a LayerNorm. Elsewhere each KV head has an index head that chooses blocks; queries and keys are
/// made of the layer's input and normalised as the layer's are. The first channels of queries and keys are rotated.
/// With Indexer::ratio it chooses, for all KV heads alike, blocks of so many tokens by the mean of their keys.
struct IndexerSpec {
  exec::Indexer indexer;  // top_k 0: attention sees all
  int rope = 0;           // index into DecoderSpec::ropes
  bool own = true;        // else the layer sees what the last one before it that has an indexer has chosen

  bool pools() const { return indexer.top_k > 0 && indexer.ratio > 1; }
  /// Makes the keys of blocks.
  exec::Compressor compressor(float eps) const {
    exec::Compressor made;
    made.ratio = indexer.ratio;
    made.dim = indexer.head_dim;
    made.mean = made.index = true;
    made.rope = rope;
    made.eps = eps;
    return made;
  }
  /// What is kept of a layer besides where it pools: keys of blocks, and what the next one is made of.
  std::vector<kv::LayerKv> kept_besides() const {
    if (!pools()) return {};
    const exec::Compressor of = compressor(0);
    return {{kv::Keeps::latent, 1, 0, 0, 0, -1, {}, of.dim, of.ratio},
            {kv::Keeps::inputs, 1, 0, of.kept(), of.window(), -1, {}, 0, 1, true}};
  }
};

constexpr int kNoRope = -1;

/// Grouped-query attention: heads / kv_heads queries share a key and a value. Or latent attention: then head_dim is
/// that of queries, their rotated channels last.
struct AttentionSpec {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t value_dim = 0;     // channels of a head's value; 0: head_dim
  float scale = 0;                // of the scores
  float score_cap = 0;            // scaled scores become cap * tanh(score / cap); 0: they stay
  float value_scale = 1;          // of what attention gives
  float max_bias = 0;             // of ALiBi: the least head's slope is its power of 1/2; 0: distance counts nothing
  std::int64_t window = 0;        // the nearest keys that a token sees; 0: all
  bool causal = true;             // else a token also sees the keys behind its own, a window's on both sides
  bool whole_pictures = true;     // causal: a picture's rows see each other, in models whose pictures do
  bool chunks = false;            // exec::Attention::chunks
  exec::Temperature temperature;  // of the queries; scale 0: none
  int rope = 0;                   // index into DecoderSpec::ropes; kNoRope: heads are not rotated
  HeadNorm norm = HeadNorm::none;
  bool norms_rotated = false;    // heads are normalised behind their rotation
  bool may_have_biases = false;  // of Q, K, V and the output, where the file has them
  bool norms_values = false;     // each head of V, by a norm without a weight
  bool values_are_keys = false;  // V is K before its norm and rotation
  std::int64_t reads = -1;       // the earlier layer whose keys and values this one sees, having none; -1: its own
  bool sinks = false;            // heads may look at nothing: a score of their own joins the softmax (attn_sinks)
  bool gated = false;            // attn_q has each head's query and behind it a gate of what its attention gives
  bool own_gate = false;         // such a gate comes from a matrix of its own (attn_gate)
  bool gates_heads = false;      // or one number for each head
  bool softplus_gates = false;   // gates go through ln(1 + e^gate) in the sigmoid's place
  LatentSpec latent;
  IndexerSpec index;

  std::int64_t q_dim() const { return heads * head_dim; }
  std::int64_t kv_dim() const { return kv_heads * head_dim; }
  std::int64_t v_dim() const { return value_dim > 0 ? value_dim : head_dim; }
  kv::LayerKv kept() const {
    const bool keyed = index.indexer.top_k > 0 && index.own && !index.pools();
    const std::int64_t index_dim = keyed ? index.indexer.head_dim : 0;
    if (latent.rank > 0) return {kv::Keeps::latent, 1, 0, latent.kept(), window, reads, {}, index_dim};
    return {kv::Keeps::attention, kv_heads, head_dim, v_dim(), causal ? window : 0, reads, {}, index_dim};
  }
};

/// In attention's place: heads that each keep a matrix as their state, updated by the gated delta rule, behind a causal
/// convolution of queries, keys and values (model/delta_net.h): a gated delta net, or Kimi's delta attention.
struct DeltaNetSpec {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;  // dims of a head
  std::int64_t taps = 0;                                                    // of the convolution
  bool tiled = false;         // value head h reads key head h % key_heads; else neighbours share one
  bool gates_in_one = false;  // beta and alpha come from one matrix
  // Kimi's: each key channel of a head has a decay; queries, keys and values have matrices and convolutions of their
  // own; the output's gate goes through a sigmoid instead of SiLU.
  bool channel_decays = false;
  std::int64_t gate_rank = 0;  // channels between the two matrices that make the decays, and those that make the gate;
                               // 0: each is one matrix
  float decay_bound = 0;       // of the decays' logarithms, below 0; 0: none
  bool sigmoid_gate = false;   // the output gate of the others goes through a sigmoid, too

  std::int64_t value_channels() const { return value_heads * value_dim; }
  std::int64_t decays() const { return channel_decays ? value_heads * key_dim : value_heads; }  // of a token
  std::int64_t channels() const { return 2 * key_heads * key_dim + value_channels(); }
  exec::DeltaRule rule() const {
    return {key_heads, value_heads, key_dim, value_dim, tiled, 1.0f / std::sqrt(static_cast<float>(key_dim))};
  }
  kv::LayerKv kept() const {
    kv::LayerKv layer;
    layer.keeps = kv::Keeps::state;
    layer.state = {taps - 1, channels(), value_heads, key_dim, value_dim};
    return layer;
  }
};

/// In attention's place: a gated causal convolution of each channel over its last inputs, the state being those inputs
/// (model/short_convolution.h).
struct ShortConvolutionSpec {
  std::int64_t channels = 0, taps = 0;

  kv::LayerKv kept() const {
    kv::LayerKv layer;
    layer.keeps = kv::Keeps::state;
    layer.state = {taps - 1, channels, 0, 0, 0};
    return layer;
  }
};

/// In attention's place: heads that each keep a matrix as their state, through which a selective scan goes, behind a
/// causal convolution of what goes in and of what writes and reads (model/mamba2.h).
struct Mamba2Spec {
  std::int64_t heads = 0, head_dim = 0, groups = 0, keys = 0;  // as in exec::Scan
  std::int64_t taps = 0;                                       // of the convolution
  bool norm = true;                                            // of each group's channels, behind the gate

  exec::Scan scan() const { return {heads, head_dim, groups, keys}; }
  kv::LayerKv kept() const {
    kv::LayerKv layer;
    layer.keeps = kv::Keeps::state;
    layer.state = {taps - 1, scan().channels(), heads, keys, head_dim};
    return layer;
  }
};

/// In attention's place: a state of so many keys for each channel, through which a scan goes whose steps each channel
/// has of its own, behind a causal convolution (model/mamba.h).
struct MambaSpec {
  std::int64_t inner = 0, keys = 0;     // channels; of a state, for each
  std::int64_t rank = 0;                // channels that steps are made of
  std::int64_t taps = 0;                // of the convolution
  bool norms = false, weighed = false;  // of what steps are made of, of what writes and of what reads; with weights
  float eps = 0;                        // of these norms; 0: the model's

  exec::Scan scan() const { return {1, inner, 1, keys, true}; }
  kv::LayerKv kept() const {
    kv::LayerKv layer;
    layer.keeps = kv::Keeps::state;
    layer.state = {taps - 1, inner, 1, keys, inner};
    return layer;
  }
};

/// In attention's place: heads that share one key, which is their value, too, and see a window of the nearest tokens
/// and compressed rows that each stand for several (model/compressed_attention.h).
struct CompressedAttentionSpec {
  std::int64_t heads = 0, head_dim = 0;
  std::int64_t q_rank = 0;      // of the latent that queries are made of
  std::int64_t window = 0;      // tokens
  std::int64_t out_groups = 0;  // neighbouring heads form groups, each with a matrix to out_rank channels
  std::int64_t out_rank = 0;
  int rope = 0;            // index into DecoderSpec::ropes
  std::int64_t ratio = 0;  // tokens to a row; 0: the layer has no rows
  bool overlaps = false;   // exec::Compressor::overlaps
  exec::Indexer indexer;   // chooses among the rows; top_k 0: all are seen

  kv::LayerKv kept() const { return {kv::Keeps::latent, 1, 0, head_dim, window}; }
  /// Of rows of so many channels: the layer's own, or its indexer's keys.
  exec::Compressor compressor(std::int64_t dim, float eps) const {
    exec::Compressor made;
    made.ratio = ratio;
    made.dim = dim;
    made.overlaps = overlaps;
    made.rope = rope;
    made.eps = eps;
    return made;
  }
  /// What is kept besides: rows, what they are made of, and what index keys are made of, as far as there are such.
  std::vector<kv::LayerKv> kept_besides() const {
    const auto inputs = [this](std::int64_t dim) {
      const exec::Compressor of = compressor(dim, 0);
      return kv::LayerKv{kv::Keeps::inputs, 1, 0, of.kept(), of.window()};
    };
    std::vector<kv::LayerKv> kept;
    if (ratio == 0) return kept;
    const std::int64_t index_dim = indexer.top_k > 0 ? indexer.head_dim : 0;
    kept.push_back({kv::Keeps::latent, 1, 0, head_dim, 0, -1, {}, index_dim, ratio});
    kept.push_back(inputs(head_dim));
    if (index_dim > 0) kept.push_back(inputs(index_dim));
    return kept;
  }
};

/// What stands before a layer's feed-forward.
/// `none`: the layer has a feed-forward alone.
enum class Mixer : std::uint8_t { attention, delta_net, short_convolution, mamba, mamba2, compressed_attention, none };

/// Experts of which each token uses those its router chooses; beside them a shared one that every token uses.
struct MixtureSpec {
  std::int64_t experts = 0, top_k = 0;
  std::int64_t ff_dim = 0;         // of one expert
  std::int64_t shared_ff_dim = 0;  // of the shared one; 0: none
  std::int64_t latent_dim = 0;  // experts read and give so many channels, between two matrices (ffn_latent_down, _up);
                                // 0: the model's, as the router and the shared expert always do
  float limit = 0;              // of LayerSpec::limits; 0: experts have the layer's activation
  bool shared_gate = false;     // which has a gate, one number a token (ffn_gate_inp_shexp)
  exec::Gating gating = exec::Gating::softmax;
  bool selection_bias = false;               // added to the probabilities for the choice alone (exp_probs_b)
  std::int64_t groups = 1, groups_used = 1;  // experts are chosen within the best of so many groups
  std::int64_t group_best = 2;               // which are ranked by the sum of so many of their best: 1 or 2
  bool normalize = true;                     // the chosen ones' weights are divided by their sum
  float scale = 1;                           // and multiplied by this
  bool biases = false;                       // of the router and of the experts
  bool weighs_inputs = false;                // one expert a token: the sigmoid of its score multiplies what it reads
  float sum_scale = 1;                       // of what the chosen experts and the shared one give together
  // The layer has a dense feed-forward, too, and adds both results: router and experts read the residual stream, each
  // through a norm of its own, and each result is normalised.
  bool beside_dense = false;
  bool of_tokens = false;      // each token has its experts by a table (ffn_gate_tid2eid)
  bool output_scales = false;  // an expert's weight is multiplied by its own number last (ffn_down_exps.scale)
};

struct LayerSpec {
  Mixer mixer = Mixer::attention;  // and its spec, of these
  bool scans = false;              // beside attention: Mamba-2 reads what that reads, and both are added
  AttentionSpec attention;
  DeltaNetSpec delta_net;
  ShortConvolutionSpec short_convolution;
  MambaSpec mamba;
  Mamba2Spec mamba2;
  CompressedAttentionSpec compressed;
  std::int64_t ff_dim = 0;  // of the dense feed-forward; 0: the layer has a mixture alone, or none of both
  MixtureSpec mixture;
  kernels::Activation activation = kernels::Activation::silu;
  std::optional<kernels::Xielu> xielu;  // in its place, in a feed-forward without a gate
  float limit = 0;                      // of `limits` in the dense feed-forward and the shared expert; 0: not limited
  kernels::Activation limits = kernels::Activation::limited;  // what goes by limits, or Activation::bounded
  bool gated = true;                    // feed-forwards have a gate; without one their up goes through the activation
  bool norms_inputs = true;             // attention and feed-forward read the residual stream through a norm
  bool norms_attended = true;           // false: the feed-forward alone does
  const char* attn_norm = "attn_norm";  // the names of the norms before attention
  const char* ffn_norm = "ffn_norm";    // and before the feed-forward
  // Attention reads the row's token beside the residual stream: [norm(embedding) | norm(x)], by this norm and
  // attn_norm, twice the channels. Null: it does not.
  const char* token_norm = nullptr;
  bool adds_to_norm = false;  // norm(x) then stands in x's place, and what attention gives is added to that
  // The dense feed-forward's gate keeps what is more than so many standard deviations above its mean; 0: all.
  float gate_deviations = 0;
  // What attention gives is joined by what it reads, and by this through two matrices with so many channels between and
  // a norm; the sum counts 1 / sqrt(2) (laurel_l, laurel_r). 0: it is not. Source: LAuReL (arXiv:2411.07501).
  std::int64_t laurel_rank = 0;
  bool ff_biases = false;  // a dense feed-forward has biases, where the file has them: its down, and without a gate its
                           // up
  bool parallel = false;   // the feed-forward reads what attention reads, through its own norm where the file has one
  bool norms_results = false;  // what attention and feed-forward give is normalised before it is added
  float residual_scale = 1;    // and multiplied by this
  bool norms_sums = false;     // the residual stream itself is normalised behind each addition (attn_output_norm,
                               // layer_output_norm)
  bool output_scale = false;   // the layer's result is multiplied by its number (layer_output_scale)

  bool feeds_forward() const { return ff_dim > 0 || mixes(); }
  bool mixes() const { return mixture.experts > 0; }
  kv::LayerKv kept() const {
    kv::LayerKv none;
    none.keeps = kv::Keeps::nothing;
    switch (mixer) {
      case Mixer::delta_net:
        return delta_net.kept();
      case Mixer::short_convolution:
        return short_convolution.kept();
      case Mixer::mamba:
        return mamba.kept();
      case Mixer::mamba2:
        return mamba2.kept();
      case Mixer::compressed_attention:
        return compressed.kept();
      case Mixer::none:
        return none;
      case Mixer::attention:
        break;
    }
    return attention.kept();
  }
  /// What is kept besides, in layers of the layout behind the model's.
  std::vector<kv::LayerKv> kept_besides() const {
    if (mixer == Mixer::compressed_attention) return compressed.kept_besides();
    if (scans) return {mamba2.kept()};
    return mixer == Mixer::attention ? attention.index.kept_besides() : std::vector<kv::LayerKv>();
  }
};

/// Before a layer: what the table has of the n-grams that end with a token makes a value, which all streams share, and
/// a key for each stream; a stream takes as much of the value as its own state meets the key. To that comes what a
/// causal convolution makes of the last values. Sources: Engram (arXiv:2601.07372), Qwen3.8-Flash-Next's model card
/// (2026).
struct NgramSpec {
  std::int64_t layer = -1;  // -1: there are none
  exec::Ngrams ngrams;
  std::int64_t dim = 0;  // channels of a row of the table, and its rows
  std::int64_t table_rows = 0;
  std::int64_t taps = 0;  // of the convolution, as far apart as the longest n-gram has tokens

  std::int64_t width() const { return ngrams.rows() * dim; }  // channels of a token
  /// The tokens before the next one, and the convolution's last inputs.
  std::vector<kv::LayerKv> kept(std::int64_t channels) const {
    kv::LayerKv tokens, inputs;
    tokens.keeps = inputs.keeps = kv::Keeps::state;
    tokens.state = {ngrams.order() - 1, 1, 0, 0, 0};
    inputs.state = {(taps - 1) * ngrams.order(), channels, 0, 0, 0};
    return {tokens, inputs};
  }
};

/// What residual streams are to a layer's parts (attention, or what stands in its place, and the feed-forward).
enum class Streams : std::uint8_t {
  // Each part reads a weighted sum of the streams; what it gives is added to all of them, by weights, and the streams
  // are mixed. All weights follow from the streams (exec::StreamWeighing). Source: DeepSeek-V4 (2026), section 2.2.
  connected,
  // A layer predicts those behind it of all before it, works on the first, and corrects the predictions by what it
  // found. Source: AltUp (arXiv:2301.13310).
  predicted,
  // Each part reads the mean of the normalised streams, each channel of each weighed by a sigmoid that follows from all
  // streams through few channels; what it gives is added to all of them, by weights. Source: Qwen3.8-Flash-Next (2026).
  gated,
};

struct DecoderSpec {
  std::vector<LayerSpec> layers;
  std::vector<RopeSpec> ropes;  // several where layers turn differently
  float embedding_scale = 1;    // multiplies the tokens' embeddings
  std::int64_t streams = 1;     // residual streams
  Streams stream_kind = Streams::predicted;
  exec::StreamWeighing weighing;  // of connected streams
  std::int64_t stream_rank = 0;   // the few channels of gated ones
  NgramSpec ngrams;
  std::int64_t per_layer_dim = 0;  // channels of an embedding that each layer adds of its own (per-layer embeddings)
  const char* output_norm = "output_norm.weight";  // the name of the norm before the head; null: there is none
  bool head = true;                                // false: an encoder's, which gives its last states
  std::int64_t dense_dim =
      0;                     // these go through two matrices with so many channels between (dense_2, dense_3); 0: none
  bool token_types = false;  // the first type's embedding is added (token_types): all tokens are of that type
  bool pair_types = false;   // or each token's own: a pair's second text is of the second type
  bool position_table = false;  // tokens have an embedding of their position, too (position_embd)
  bool embedding_norm = false;  // what is embedded is normalised before the layers (token_embd_norm)
  bool layer_norms = false;  // what stands before blocks and the head is LayerNorm, with a bias where the file has one
  float logit_scale = 1;     // multiplies the logits
  float logit_cap = 0;       // then they become cap * tanh(logit / cap); 0: they stay
  bool guesses = true;       // blocks behind the layers, where the file has them, guess as this version knows it
  // Layers whose inputs a pass hands over beside the final states (exec::Ops::tap()), ascending; the number of layers
  // stands for what the last one gives.
  std::vector<std::int64_t> taps;
  bool bare_states = false;  // the final states that are handed over are those in front of the last norm
};

}  // namespace millrace::model

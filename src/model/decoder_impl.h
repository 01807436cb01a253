// The inside of the decoder (decoder.h): which weights a layer has, and which steps it is. decoder_weights.cpp lists
// the former in the order in which a pass uses them, decoder_steps.cpp records the latter.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exec/ops.h"
#include "model/compressed_attention.h"
#include "model/decoder.h"
#include "model/delta_net.h"
#include "model/mamba.h"
#include "model/mamba2.h"
#include "model/short_convolution.h"
#include "model/unit_builder.h"

namespace millrace::model {

using exec::Act;
using exec::WeightRef;

/// What predicts a layer's streams and corrects them, in models of several. Both have the same router and norm: as
/// weights of their own, because a pass uses them twice.
struct StreamWeights {
  WeightRef predict_norm, predict_router, predict, correct_norm, correct_router, correct;
  WeightRef first_scale;  // [model_dim], of what per-layer embeddings read
};

/// What makes the weights of connected streams, of all streams normalised as one: W x, then scales and bias. Of gated
/// ones, each normalised: what weighs their channels, through `down` and `up`, and what writes to them.
struct StreamWeigher {
  WeightRef matrix, scales, bias;
  WeightRef norm, down, inject, up;
};

/// What n-grams add to the streams.
struct NgramWeights {
  WeightRef key, value, key_norm, query_norm, input_norm, taps;
};

/// A layer's weights; none() where the spec or the file has none.
struct LayerWeights {
  WeightRef token_norm;  // of the token's embedding that attention reads, too
  WeightRef attn_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, attn_out, attn_out_bias, ffn_norm;
  WeightRef attn_norm_bias, ffn_norm_bias;  // of LayerNorm
  WeightRef attn_gate;                      // of what attention gives
  WeightRef attn_result_norm, ffn_result_norm, sinks, head_gate;
  WeightRef attn_sum_norm, attn_sum_bias, ffn_sum_norm, ffn_sum_bias;  // of the residual stream behind both
  WeightRef q_low, q_low_norm, latent, latent_norm, shared_key, k_of_latent, v_of_latent;  // of latent attention
  WeightRef index_q, index_k, index_q_norm, index_norm, index_bias, index_weights;         // of its indexer
  DeltaNetWeights delta_net;                                                               // in attention's place
  MambaWeights mamba;                                                                      // likewise
  Mamba2Weights mamba2;                                                                    // likewise
  ShortConvolutionWeights short_convolution;                                               // likewise
  CompressedAttentionWeights compressed;                                                   // likewise
  WeightRef gate, up, down, up_bias, down_bias;                                            // dense
  WeightRef shared_gate, shared_up, shared_down, shared_by;  // of a mixture's shared expert, and its gate
  WeightRef router, latent_down, latent_up;                  // the two around experts that work in fewer channels
  WeightRef input_router;                                    // the router once more, where it weighs what experts read
  WeightRef router_norm, experts_norm, dense_result_norm, experts_result_norm;  // of one beside a dense feed-forward
  WeightRef per_layer_gate, per_layer_out, per_layer_norm;
  WeightRef output_scale;
  WeightRef control_one, control_sum;  // what control vectors add behind the layer (model/control_vector.h)
  StreamWeights streams;               // predicted ones
  StreamWeigher mixer_weigher, feed_forward_weigher;  // of connected ones
  WeightRef laurel_down, laurel_up, laurel_norm;
  NgramWeights ngrams;
  exec::Experts experts;
};

constexpr std::int64_t kShardStep = 32;  // rows: a block of quantized activations

/// What the block that guesses, or a head in a file of its own, has beside its layer. joined: what makes one state of
/// two, or of the taps, which states_norm normalises where a head's file has it.
struct DraftWeights {
  WeightRef embedding, embedding_norm, states_norm, joined, norm, head;
  WeightRef given_back;  // of an assistant: makes of its states what stands in the model's place
};

/// The table that lists the units of what guesses: the model's, or one of their own.
class DraftTable {
 public:
  /// own: null if they stand in the model's table. Both outlive the object.
  DraftTable(residency::UnitTable& model, residency::UnitTable* own) : model_(model), own_(own) {}
  residency::UnitTable& table() { return own_ != nullptr ? *own_ : model_; }
  /// A weight of the model that guessing uses, as this table has it: it gets a copy of the unit's description, once.
  /// REQUIRES: no unit of this table is open.
  WeightRef take(WeightRef of_model);
  /// Of pairs of a matrix and its scale, those whose matrix this table has.
  std::vector<std::pair<WeightRef, WeightRef>> take_scales(
      const std::vector<std::pair<WeightRef, WeightRef>>& of_model) const;

 private:
  residency::UnitTable& model_;
  residency::UnitTable* const own_;
  std::map<std::int32_t, std::int32_t> taken_;  // unit of the model, unit here
};

/// Those of a shard. Whole blocks of activations lie on one side of a border, so that each device can quantize its own.
RowRange rows_of(const Shard& shard, std::int64_t rows);

/// Whether each of `count` devices can have as many heads, with keys and values of its own, of all layers that attend,
/// because these share blocks. If not, all devices attend alike.
bool cuts_heads(const DecoderSpec& spec, std::int64_t count);

class Decoder {
 public:
  /// stage: with its last layer named.
  Decoder(const Hyperparameters& hp, const DecoderSpec& spec, const Stage& stage, const Shard& shard, exec::Ops& ops)
      : hp_(hp),
        spec_(spec),
        stage_(stage),
        shard_(shard),
        heads_{cuts_heads(spec, shard.count) ? shard : Shard()},
        ops_(ops) {}
  Status list_units(const modelfile::Model& file, residency::UnitTable& table);
  /// Those of the block behind the layers, whose spec stands behind theirs.
  Status list_draft_block(const modelfile::Model& file, DraftTable& table);
  /// Of the blocks behind the layers, from this one on, those that the file has.
  std::vector<residency::Unit> list_draft_blocks(const modelfile::Model& file, std::int64_t first) const;
  /// Of a head that guesses for `target`, which has the embedding and the head that the file may lack. `first_file`:
  /// UnitBuilder. `tap_dim`: of all taps together.
  Status list_draft_head(const modelfile::Model& file, int first_file, const Decoder& target, std::int64_t tap_dim,
                         DraftTable& table);
  /// Of an assistant that guesses for `target`, whose embedding it takes.
  Status list_assistant(const modelfile::Model& file, int first_file, const Decoder& target, DraftTable& table);
  void record();
  void record_draft();
  void record_draft_head();
  void record_fusion(std::int64_t tap_dim);
  /// Over the sequences of `target`.
  void record_assistant(const Decoder& target);

 private:
  void begin_program(std::span<const kv::LayerKv> kept);
  void end_program(const OutputWeights& output);
  void hand_over();
  void embed();
  void tap(std::int64_t index);
  Act read_by_attention(std::int64_t index);
  void embed_for_layers();
  void attend(std::int64_t index);
  std::vector<float> slopes(const AttentionSpec& spec, std::int64_t heads) const;
  void normalize(Act out, Act x, WeightRef norm, WeightRef bias);
  void read_stream(const LayerSpec& spec, WeightRef norm, WeightRef bias);
  void normalize_heads(std::int64_t index, Act q, Act k);
  void mix_tokens(std::int64_t index);
  void attend_latent(std::int64_t index);
  Act selected(std::int64_t index, Act low);
  Act selected_blocks(std::int64_t index);
  Act selected_pools(std::int64_t index);
  Act chosen_by_heads(std::int64_t index);
  void remember(std::int64_t index);
  void feed_forward(std::int64_t index);
  void activate_products(const LayerSpec& spec, Act hidden, WeightRef gate, WeightRef up, WeightRef up_bias = {});
  Act gathered(const std::string& name, std::int64_t cols, std::int64_t first, Act own);
  Act own_of(const std::string& name, Act all, std::int64_t cols);
  Act of_shared_expert(std::int64_t index);
  Act mixed(std::int64_t index, Act read, Act routed);
  Act weighed(std::int64_t index, Act read);
  void project(Act out, WeightRef weight, WeightRef bias, Act x);
  void mix(std::int64_t index);
  void mix_beside(std::int64_t index);
  void add_of_layer(std::int64_t index);
  // decoder_streams.cpp
  bool gates() const { return spec_.streams > 1 && spec_.stream_kind == Streams::gated; }
  bool connects() const { return spec_.streams > 1 && spec_.stream_kind != Streams::predicted; }
  bool predicts() const { return spec_.streams > 1 && spec_.stream_kind == Streams::predicted; }
  StreamWeigher list_weigher(UnitBuilder& units, const std::string& stem, bool writes) const;
  StreamWeigher list_gates(UnitBuilder& units, const std::string& stem, bool writes) const;
  void list_streams_end(UnitBuilder& units);
  void read_streams(const StreamWeigher& weigher);
  void read_gated(const StreamWeigher& weigher);
  void write_streams(Act result);
  // decoder_ngrams.cpp
  void list_ngrams(UnitBuilder& units, int index, LayerWeights& weights) const;
  void add_ngrams(std::int64_t index);
  std::vector<WeightRef> list_between_streams(UnitBuilder& units, const std::string& name) const;
  void list_prediction(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_correction(UnitBuilder& units, int index, LayerWeights& weights) const;
  void open_streams();
  Act route_streams(WeightRef norm, WeightRef router);
  void predict_streams(std::int64_t index);
  void correct_streams(std::int64_t index);
  void merge_streams();
  Act laurel(std::int64_t index);
  void add_result(const LayerSpec& spec, Act result, WeightRef norm);
  void list_for_layers(UnitBuilder& units);
  void list_embeddings(UnitBuilder& units, std::int64_t positions);
  void list_norm(UnitBuilder& units, int index, const char* stem, WeightRef& weight, WeightRef& bias) const;
  void list_mixer(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_attention(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_latent_attention(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_indexer(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_feed_forward(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_dense(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_results(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_mixture(UnitBuilder& units, int index, LayerWeights& weights) const;
  void list_expert_scales(UnitBuilder& units, int index, exec::Experts& experts) const;
  float eps() const { return static_cast<float>(hp_.rms_eps); }
  bool begins() const { return stage_.first == 0; }
  bool ends() const { return stage_.last == hp_.layers; }
  RowRange own(std::int64_t rows) const { return rows_of(shard_, rows); }
  std::int64_t own_heads(std::int64_t heads) const { return heads / heads_.count; }
  kv::LayerKv kept_here(std::int64_t index) const {
    const LayerSpec& layer = spec_.layers[static_cast<std::size_t>(index)];
    kv::LayerKv kept = layer.kept();
    if (layer.mixer == Mixer::attention) kept.kv_heads = own_heads(kept.kv_heads);
    return kept;
  }

  const Hyperparameters& hp_;
  const DecoderSpec& spec_;
  const Stage stage_;
  const Shard shard_;
  const Shard heads_;  // of layers that attend; states and latents are not cut at all
  exec::Ops& ops_;
  std::vector<LayerWeights> layers_;  // by number; those of other stages have none
  WeightRef embedding_, positions_, token_type_, embedding_norm_, embedding_norm_bias_;
  OutputWeights output_;
  WeightRef dense_up_, dense_down_;                      // of what embeds texts, behind the last norm
  std::vector<std::pair<WeightRef, WeightRef>> scales_;  // of weights, by which their products are multiplied
  DraftWeights draft_;
  WeightRef layers_table_, layers_projection_, layers_norm_;  // of per-layer embeddings
  Act x_, h_;  // the residual stream; what a block reads of it, and what it adds to it
  std::vector<WeightRef> opened_streams_, merged_streams_;  // a matrix for each predicted stream but the first
  StreamWeigher last_weigher_;                              // of what the head reads of connected ones
  std::vector<std::int64_t> besides_;  // by layer: what of it is kept besides (layers of the layout)
  bool over_model_ = false;            // an assistant's: layers read those of the model's layout
  std::int64_t ngrams_besides_ = 0;    // likewise what n-grams keep
  WeightRef ngrams_table_;
  Act streams_;    // in models of several: those between layers, one after the other; x is the first of them in a layer
  Act of_layers_;  // per-layer embeddings, one layer's channels behind the other's
};

}  // namespace millrace::model

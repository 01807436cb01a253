// Compressed attention: one key for all heads, which is their value, too; a token sees a window of the nearest tokens
// and rows that each stand for several earlier ones, all or those that an indexer chooses, in one softmax with a score
// of its own for nothing. Source: DeepSeek-V4 (2026), section 2.3.
#pragma once

#include "exec/ops.h"
#include "model/layer_spec.h"
#include "model/unit_builder.h"

namespace millrace::model {

/// What makes rows: of the layer, or of its indexer.
struct CompressorWeights {
  exec::WeightRef inputs, gates, norm, bias;
};

struct CompressedAttentionWeights {
  exec::WeightRef q_low, q_low_norm, q, key, key_norm, sinks;
  exec::WeightRef out_of_groups, out;
  CompressorWeights rows, index;
  exec::WeightRef index_q, index_weights;
};

/// The layer's norm and its feed-forward are not among them.
CompressedAttentionWeights list_compressed_attention(UnitBuilder& units, int layer, const CompressedAttentionSpec& spec,
                                                     std::int64_t model_dim);

/// h = attention(h), a buffer of the layer's normalised input. `besides`: the first of the layers of the layout that
/// keep CompressedAttentionSpec::kept_besides().
void record_compressed_attention(exec::Ops& ops, std::int64_t layer, const CompressedAttentionSpec& spec,
                                 const CompressedAttentionWeights& weights, std::int64_t besides, exec::Act h,
                                 float eps);

}  // namespace millrace::model

// A gated short convolution as a layer's mixer: its weights in the order of their use, and its ops. Source: LFM2
// technical report (arXiv:2511.23404).
#pragma once

#include <cstdint>

#include "exec/ops.h"
#include "model/layer_spec.h"
#include "model/unit_builder.h"

namespace millrace::model {

struct ShortConvolutionWeights {
  exec::WeightRef before, after, x;  // of the gates before and behind the convolution, and of what they gate
  exec::WeightRef taps, out;
};

/// What stands between the layer's norm and its feed-forward.
ShortConvolutionWeights list_short_convolution(UnitBuilder& units, int layer, const ShortConvolutionSpec& spec,
                                               std::int64_t model_dim);

/// h = W_out (after * convolution(before * x)), each of the three a product of h, a buffer of the layer's normalised
/// input.
void record_short_convolution(exec::Ops& ops, std::int64_t layer, const ShortConvolutionSpec& spec,
                              const ShortConvolutionWeights& weights, exec::Act h);

}  // namespace millrace::model

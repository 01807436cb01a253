// A gated delta net as a layer's mixer: its weights in the order of their use, and its ops. Sources: Gated Delta
// Networks (arXiv:2412.06464), as Qwen3-Next and Qwen3.5 have it: a causal convolution over queries, keys and values,
// heads of values in groups that share a key, and a gated norm behind the rule; Kimi Linear (arXiv:2510.26692), whose
// delta attention has a decay for each key channel.
#pragma once

#include <cstdint>

#include "exec/ops.h"
#include "model/layer_spec.h"
#include "model/unit_builder.h"

namespace millrace::model {

struct DeltaNetWeights {
  exec::WeightRef qkv, z, beta, alpha, beta_alpha;  // beta_alpha: both in one, and the others are none()
  exec::WeightRef taps, a, dt_bias, norm, out;
  // Kimi's delta attention: instead of qkv and taps; what stands before alpha and z.
  exec::WeightRef q, k, v, q_taps, k_taps, v_taps, low_alpha, low_z;
};

/// What stands between the layer's norm and its feed-forward.
DeltaNetWeights list_delta_net(UnitBuilder& units, int layer, const DeltaNetSpec& spec, std::int64_t model_dim);

/// h = net(h), a buffer of the layer's normalised input.
void record_delta_net(exec::Ops& ops, std::int64_t layer, const DeltaNetSpec& spec, const DeltaNetWeights& weights,
                      exec::Act h, float eps);

}  // namespace millrace::model

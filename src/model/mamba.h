// Mamba as a layer's mixer: its spec from a file's keys, its weights in the order of their use, and its ops. Source:
// Mamba (arXiv:2312.00752).
#pragma once

#include <cstdint>

#include "exec/ops.h"
#include "model/layer_spec.h"
#include "model/unit_builder.h"
#include "modelfile/gguf.h"

namespace millrace::model {

/// `norms`: the layers have weights of norms (Jamba). Errors: not_found, corrupt, unsupported (a key, named).
Expected<MambaSpec> read_mamba(const modelfile::Model& file, bool norms);

struct MambaWeights {
  exec::WeightRef z, x, low, keys;  // keys: what writes and what reads, side by side; where norms are weighed, each
  exec::WeightRef writes, reads;    // is a matrix of its own
  exec::WeightRef taps, taps_bias, low_norm, writes_norm, reads_norm, step, step_bias, a, skip, out;
};

/// What stands between the layer's norm and its feed-forward.
MambaWeights list_mamba(UnitBuilder& units, int layer, const MambaSpec& spec, std::int64_t model_dim);

/// h = mamba(h), a buffer of the layer's normalised input.
void record_mamba(exec::Ops& ops, std::int64_t layer, const MambaSpec& spec, const MambaWeights& weights, exec::Act h,
                  float eps);

}  // namespace millrace::model

// Mamba-2 as a layer's mixer: its spec from a file's keys, its weights in the order of their use, and its ops. Source:
// Transformers are SSMs (arXiv:2405.21060).
#pragma once

#include <cstdint>

#include "exec/ops.h"
#include "model/layer_spec.h"
#include "model/unit_builder.h"
#include "modelfile/gguf.h"

namespace millrace::model {

/// Errors: not_found, corrupt, unsupported (a key, named).
Expected<Mamba2Spec> read_mamba2(const modelfile::Model& file);

struct Mamba2Weights {
  exec::WeightRef z, x, step;  // x: what goes in, what writes and what reads, side by side
  exec::WeightRef taps, taps_bias, a, step_bias, skip, norm, out;
};

/// What stands between the layer's norm and its feed-forward.
Mamba2Weights list_mamba2(UnitBuilder& units, int layer, const Mamba2Spec& spec, std::int64_t model_dim);

/// h = mamba2(h), a buffer of the layer's normalised input.
void record_mamba2(exec::Ops& ops, std::int64_t layer, const Mamba2Spec& spec, const Mamba2Weights& weights,
                   exec::Act h, float eps);

}  // namespace millrace::model

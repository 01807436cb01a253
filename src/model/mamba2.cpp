// The mixer, and the architecture that has nothing else: Mamba-2, and Codestral Mamba.
#include "model/mamba2.h"

#include <string>

#include "kernels/recurrent.h"
#include "model/architectures.h"
#include "model/state_heads.h"

namespace millrace::model {

using exec::Act;

Expected<Mamba2Spec> read_mamba2(const modelfile::Model& file) {
  MR_ASSIGN_OR_RETURN(const StateHeads read, read_state_heads(file, kernels::kScanLanes));
  Mamba2Spec spec;
  spec.heads = read.heads;
  spec.head_dim = read.values;
  spec.groups = read.groups;
  spec.keys = read.keys;
  spec.taps = read.taps;
  return spec;
}

Mamba2Weights list_mamba2(UnitBuilder& units, int layer, const Mamba2Spec& spec, std::int64_t model_dim) {
  const auto name = [&](std::string_view tensor) { return layer_tensor(layer, tensor); };
  const std::int64_t inner = spec.scan().inner(), channels = spec.scan().channels();
  const std::int64_t all = inner + channels + spec.heads;
  const std::string in = name("ssm_in.weight");
  Mamba2Weights weights;
  weights.z = units.rows(in, model_dim, all, 0, inner);
  weights.x = units.rows(in, model_dim, all, inner, channels);
  weights.step = units.rows(in, model_dim, all, inner + channels, spec.heads);
  weights.a = units.vectors(name("ssm_a"), 1, spec.heads);
  weights.step_bias = units.vector(name("ssm_dt.bias"), spec.heads);
  weights.taps = units.vectors(name("ssm_conv1d.weight"), spec.taps, channels);
  weights.taps_bias = units.optional_vector(name("ssm_conv1d.bias"), channels);
  weights.skip = units.vectors(name("ssm_d"), 1, spec.heads);
  if (spec.norm) weights.norm = units.vectors(name("ssm_norm.weight"), inner / spec.groups, spec.groups);
  weights.out = units.matrix(name("ssm_out.weight"), inner, model_dim);
  return weights;
}

/// With x = silu(convolution(W_x h)) and each head's step = ln(1 + e^(W_step h + bias)): the scan, whose states forget
/// by e^(a step), then W_out norm(silu(W_z h) * its result), the norm over each group's channels, where the
/// model has one.
void record_mamba2(exec::Ops& ops, std::int64_t layer, const Mamba2Spec& spec, const Mamba2Weights& weights, Act h,
                   float eps) {
  const exec::Scan scan = spec.scan();
  const Act z = ops.buffer("z", scan.inner()), x = ops.buffer("scanned", scan.channels()),
            read = ops.buffer("read of state", scan.inner());
  const Act step = ops.buffer("step", scan.heads), decay = ops.buffer("decay", scan.heads);
  const exec::Product products[] = {{z, weights.z, {}}, {x, weights.x, {}}, {step, weights.step, {}}};
  ops.matmul(products, h);
  ops.time_step(decay, step, weights.a, weights.step_bias);
  ops.convolve(x, x, weights.taps, layer, {spec.taps, weights.taps_bias, true});
  ops.scan(read, x, step, decay, layer, weights.skip, scan);
  ops.gate(z, read, 0, kernels::Activation::silu);
  if (spec.norm) ops.rms_norm_heads(z, weights.norm, scan.inner() / scan.groups, eps);
  ops.matmul(h, weights.out, z);
}

Expected<DecoderSpec> mamba2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  layer.mixer = Mixer::mamba2;
  MR_ASSIGN_OR_RETURN(layer.mamba2, read_mamba2(file));
  DecoderSpec spec;
  spec.layers.assign(static_cast<std::size_t>(hp.layers), layer);
  return spec;
}

}  // namespace millrace::model

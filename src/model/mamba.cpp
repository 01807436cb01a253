// The mixer, and the architectures that have it: Mamba and Falcon-Mamba, which have nothing else, and Jamba, with
// layers that attend without a rotation, and mixtures. Sources: Falcon Mamba (arXiv:2410.05355), Jamba
// (arXiv:2403.19887).
#include "model/mamba.h"

#include <string>

#include "kernels/recurrent.h"
#include "model/architectures.h"
#include "model/hyperparameters.h"

namespace millrace::model {

using exec::Act;

Expected<MambaSpec> read_mamba(const modelfile::Model& file, bool norms) {
  Keys keys(file);
  MambaSpec spec;
  spec.taps = keys.required("ssm.conv_kernel", 2, kernels::kMostTaps);
  spec.inner = keys.required("ssm.inner_size", kernels::kScanLanes, 1 << 20);
  spec.keys = keys.required("ssm.state_size", 2, kernels::kMostSelectiveKeys);
  spec.rank = keys.required("ssm.time_step_rank", 1, 1 << 16);
  spec.norms = norms || keys.optional_bool("ssm.dt_b_c_rms", false);
  spec.weighed = norms;
  spec.eps = static_cast<float>(keys.optional_float("ssm.dt_b_c_rms_epsilon", 0, -1, 1));
  if (spec.inner % kernels::kScanLanes != 0)
    keys.fail(error(Code::unsupported, "{} is {}: this version wants a multiple of {}",
                    arch_key(file, "ssm.inner_size"), spec.inner, kernels::kScanLanes));
  if (spec.keys % 2 != 0)
    keys.fail(error(Code::unsupported, "{} is {}: this version wants an even number", arch_key(file, "ssm.state_size"),
                    spec.keys));
  MR_RETURN_IF_ERROR(keys.status());
  return spec;
}

MambaWeights list_mamba(UnitBuilder& units, int layer, const MambaSpec& spec, std::int64_t model_dim) {
  const auto name = [&](std::string_view tensor) { return layer_tensor(layer, tensor); };
  const std::string in = name("ssm_in.weight"), made = name("ssm_x.weight");
  const std::int64_t all = spec.rank + 2 * spec.keys;
  MambaWeights weights;
  weights.x = units.rows(in, model_dim, 2 * spec.inner, 0, spec.inner);
  weights.z = units.rows(in, model_dim, 2 * spec.inner, spec.inner, spec.inner);
  weights.taps = units.vectors(name("ssm_conv1d.weight"), spec.taps, spec.inner);
  weights.taps_bias = units.optional_vector(name("ssm_conv1d.bias"), spec.inner);
  weights.low = units.rows(made, spec.inner, all, 0, spec.rank);
  if (spec.weighed) {
    weights.writes = units.rows(made, spec.inner, all, spec.rank, spec.keys);
    weights.reads = units.rows(made, spec.inner, all, spec.rank + spec.keys, spec.keys);
    weights.low_norm = units.vector(name("ssm_dt_norm.weight"), spec.rank);
    weights.writes_norm = units.vector(name("ssm_b_norm.weight"), spec.keys);
    weights.reads_norm = units.vector(name("ssm_c_norm.weight"), spec.keys);
  } else {
    weights.keys = units.rows(made, spec.inner, all, spec.rank, 2 * spec.keys);
  }
  weights.step = units.matrix(name("ssm_dt.weight"), spec.rank, spec.inner);
  weights.step_bias = units.vector(name("ssm_dt.bias"), spec.inner);
  weights.skip = units.vector(name("ssm_d"), spec.inner);
  weights.a = units.vectors(name("ssm_a"), spec.keys, spec.inner);
  weights.out = units.matrix(name("ssm_out.weight"), spec.inner, model_dim);
  return weights;
}

/// With x = silu(convolution(W_x h)), and of it a low-rank step of each channel, what writes and what reads, which may
/// be normalised: the scan, whose states forget by e^(a step), then W_out (silu(W_z h) * its result).
void record_mamba(exec::Ops& ops, std::int64_t layer, const MambaSpec& spec, const MambaWeights& weights, Act h,
                  float eps) {
  const Act z = ops.buffer("z", spec.inner), x = ops.buffer("scanned", spec.inner),
            read = ops.buffer("read of state", spec.inner), step = ops.buffer("step", spec.inner);
  const Act low = ops.buffer("low step", spec.rank), keys = ops.buffer("keys of state", 2 * spec.keys);
  const float small = spec.eps > 0 ? spec.eps : eps;
  const exec::Product in[] = {{x, weights.x, {}}, {z, weights.z, {}}};
  ops.matmul(in, h);
  ops.convolve(x, x, weights.taps, layer, {spec.taps, weights.taps_bias, true});
  if (spec.weighed) {
    const Act writes = ops.buffer("writes", spec.keys), reads = ops.buffer("reads", spec.keys);
    const exec::Product made[] = {{low, weights.low, {}}, {writes, weights.writes, {}}, {reads, weights.reads, {}}};
    ops.matmul(made, x);
    ops.rms_norm(low, low, weights.low_norm, small);
    ops.rms_norm(writes, writes, weights.writes_norm, small);
    ops.rms_norm(reads, reads, weights.reads_norm, small);
    ops.join(keys, writes, reads);
  } else {
    const exec::Product made[] = {{low, weights.low, {}}, {keys, weights.keys, {}}};
    ops.matmul(made, x);
    if (spec.norms) {
      ops.rms_norm_heads(low, {}, spec.rank, small);
      ops.rms_norm_heads(keys, {}, spec.keys, small);
    }
  }
  const exec::Product steps[] = {{step, weights.step, weights.step_bias}};
  ops.matmul(steps, low);
  ops.selective_scan(read, x, step, keys, layer, weights.skip, weights.a, spec.scan());
  ops.gate(z, read, 0, kernels::Activation::silu);
  ops.matmul(h, weights.out, z);
}

Expected<DecoderSpec> mamba_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  layer.mixer = Mixer::mamba;
  MR_ASSIGN_OR_RETURN(layer.mamba, read_mamba(file, false));
  DecoderSpec spec;
  spec.layers.assign(static_cast<std::size_t>(hp.layers), layer);
  return spec;
}

Expected<DecoderSpec> jamba_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(const MambaSpec mamba, read_mamba(file, true));
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> kv_heads, read_kv_heads(file, hp));
  DecoderSpec spec;
  for (std::size_t at = 0; at < kv_heads.size(); ++at) {
    LayerSpec& layer = spec.layers.emplace_back();
    layer.mixer = kv_heads[at] == 0 ? Mixer::mamba : Mixer::attention;
    layer.mamba = mamba;
    layer.attention = plain_attention(hp);
    layer.attention.kv_heads = kv_heads[at];
    layer.attention.rope = kNoRope;
    if (file.find(layer_tensor(static_cast<int>(at), "ffn_gate_inp.weight")) != nullptr) {
      MixtureSpec defaults;
      defaults.normalize = false;
      MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp, defaults));
    } else {
      MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
    }
  }
  return spec;
}

}  // namespace millrace::model

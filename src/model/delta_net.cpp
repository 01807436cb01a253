#include "model/delta_net.h"

#include <cmath>
#include <string>

namespace millrace::model {

using exec::Act;

namespace {

constexpr float kL2Eps = 1e-6f;  // of queries and keys, whatever the norms have

DeltaNetWeights list_kimi_delta(UnitBuilder& units, int layer, const DeltaNetSpec& spec, std::int64_t model_dim) {
  const auto name = [&](std::string_view tensor) { return layer_tensor(layer, tensor); };
  const std::int64_t keys = spec.key_heads * spec.key_dim, values = spec.value_channels(), rank = spec.gate_rank;
  DeltaNetWeights weights;
  weights.q = units.matrix(name("attn_q.weight"), model_dim, keys);
  weights.k = units.matrix(name("attn_k.weight"), model_dim, keys);
  weights.v = units.matrix(name("attn_v.weight"), model_dim, values);
  weights.beta = units.matrix(name("ssm_beta.weight"), model_dim, spec.value_heads);
  if (rank > 0) {
    weights.low_alpha = units.matrix(name("ssm_f_a.weight"), model_dim, rank);
    weights.low_z = units.matrix(name("ssm_g_a.weight"), model_dim, rank);
    weights.alpha = units.matrix(name("ssm_f_b.weight"), rank, spec.decays());
    weights.z = units.matrix(name("ssm_g_b.weight"), rank, values);
  } else {
    weights.alpha = units.matrix(name("ssm_f_a.weight"), model_dim, spec.decays());
    weights.z = units.matrix(name("ssm_g_a.weight"), model_dim, values);
  }
  weights.a = units.vectors(name("ssm_a"), 1, spec.value_heads);
  weights.dt_bias = units.vector(name("ssm_dt.bias"), spec.decays());
  weights.q_taps = units.taps(name("ssm_conv1d_q.weight"), spec.taps, keys);
  weights.k_taps = units.taps(name("ssm_conv1d_k.weight"), spec.taps, keys);
  weights.v_taps = units.taps(name("ssm_conv1d_v.weight"), spec.taps, values);
  weights.norm = units.vector(name("ssm_norm.weight"), spec.value_dim);
  weights.out = units.matrix(name("attn_output.weight"), values, model_dim);
  return weights;
}

/// With q, k, v = silu(convolution(W h)) of each, heads of q and k of length 1: the delta rule with beta =
/// sigmoid(W_beta h) and of each key channel decay = e^(a softplus(W_alpha (W_low_alpha h) + bias)), or bounded as
/// Ops::decay() has it, then W_out (sigmoid(W_z (W_low_z h)) * norm(its result)); there may be no W_low.
void record_kimi_delta(exec::Ops& ops, std::int64_t layer, const DeltaNetSpec& spec, const DeltaNetWeights& weights,
                       Act h, float eps) {
  const std::int64_t keys = spec.key_heads * spec.key_dim, values = spec.value_channels();
  const Act q = ops.buffer("q of state", keys), k = ops.buffer("k of state", keys),
            v = ops.buffer("v of state", values), qkv = ops.buffer("qkv", spec.channels()), z = ops.buffer("z", values),
            read = ops.buffer("read of state", values);
  const Act beta = ops.buffer("beta", spec.value_heads), alpha = ops.buffer("alpha", spec.decays());
  const exec::Product wide[] = {{q, weights.q, {}}, {k, weights.k, {}}, {v, weights.v, {}}};
  ops.matmul(wide, h);
  if (spec.gate_rank > 0) {
    const Act low_alpha = ops.buffer("low alpha", spec.gate_rank), low_z = ops.buffer("low z", spec.gate_rank);
    const exec::Product narrow[] = {
        {beta, weights.beta, {}}, {low_alpha, weights.low_alpha, {}}, {low_z, weights.low_z, {}}};
    ops.matmul(narrow, h);
    ops.matmul(alpha, weights.alpha, low_alpha);
    ops.matmul(z, weights.z, low_z);
  } else {
    const exec::Product gates[] = {{beta, weights.beta, {}}, {alpha, weights.alpha, {}}, {z, weights.z, {}}};
    ops.matmul(gates, h);
  }
  ops.decay(alpha, weights.a, weights.dt_bias, spec.decay_bound);
  ops.convolve(qkv, q, weights.q_taps, layer, {spec.taps, {}, true});
  ops.convolve(qkv, k, weights.k_taps, layer, {spec.taps, {}, true, keys});
  ops.convolve(qkv, v, weights.v_taps, layer, {spec.taps, {}, true, 2 * keys});
  ops.l2_norm_heads(qkv, 2 * spec.key_heads, spec.key_dim, kL2Eps);
  ops.delta_rule(read, qkv, beta, alpha, layer, spec.rule());
  ops.rms_norm_heads(read, weights.norm, spec.value_dim, eps);
  ops.sigmoid_gate(read, z);
  ops.matmul(h, weights.out, read);
}

}  // namespace

DeltaNetWeights list_delta_net(UnitBuilder& units, int layer, const DeltaNetSpec& spec, std::int64_t model_dim) {
  if (spec.channel_decays) return list_kimi_delta(units, layer, spec, model_dim);
  const auto name = [&](std::string_view tensor) { return layer_tensor(layer, tensor); };
  DeltaNetWeights weights;
  weights.qkv = units.matrix(name("attn_qkv.weight"), model_dim, spec.channels());
  weights.z = units.matrix(name("attn_gate.weight"), model_dim, spec.value_channels());
  if (spec.gates_in_one) {
    weights.beta_alpha = units.matrix(name("ssm_ba.weight"), model_dim, 2 * spec.value_heads);
  } else {
    weights.beta = units.matrix(name("ssm_beta.weight"), model_dim, spec.value_heads);
    weights.alpha = units.matrix(name("ssm_alpha.weight"), model_dim, spec.value_heads);
  }
  weights.a = units.vector(name("ssm_a"), spec.value_heads);
  weights.dt_bias = units.vector(name("ssm_dt.bias"), spec.value_heads);
  weights.taps = units.vectors(name("ssm_conv1d.weight"), spec.taps, spec.channels());
  weights.norm = units.vector(name("ssm_norm.weight"), spec.value_dim);
  weights.out = units.matrix(name("ssm_out.weight"), spec.value_channels(), model_dim);
  return weights;
}

/// With q, k, v = silu(convolution(W_qkv h)), heads of q and k of length 1: the delta rule with beta = sigmoid(W_beta
/// h) and decay = e^(a softplus(W_alpha h + bias)), then W_out (silu(W_z h) * norm(its result)), or with a sigmoid.
void record_delta_net(exec::Ops& ops, std::int64_t layer, const DeltaNetSpec& spec, const DeltaNetWeights& weights,
                      Act h, float eps) {
  if (spec.channel_decays) return record_kimi_delta(ops, layer, spec, weights, h, eps);
  const std::int64_t heads = spec.value_heads;
  const Act qkv = ops.buffer("qkv", spec.channels()), z = ops.buffer("z", spec.value_channels()),
            read = ops.buffer("read of state", spec.value_channels());
  const Act beta = ops.buffer("beta", heads), alpha = ops.buffer("alpha", heads);
  const exec::Product wide[] = {{qkv, weights.qkv, {}}, {z, weights.z, {}}};
  const exec::Product gates[] = {{beta, weights.beta, {}}, {alpha, weights.alpha, {}}};
  ops.matmul(wide, h);
  if (spec.gates_in_one) {  // of each key head: beta of its value heads, then alpha
    const Act both = ops.buffer("beta and alpha", 2 * heads);
    const std::int64_t each = heads / spec.key_heads;
    ops.matmul(both, weights.beta_alpha, h);
    ops.pick_heads(beta, both, spec.key_heads, each, 0);
    ops.pick_heads(alpha, both, spec.key_heads, each, each);
  } else {
    ops.matmul(gates, h);
  }
  ops.decay(alpha, weights.a, weights.dt_bias);
  ops.convolve(qkv, qkv, weights.taps, layer, {spec.taps, {}, true});
  ops.l2_norm_heads(qkv, 2 * spec.key_heads, spec.key_dim, kL2Eps);
  ops.delta_rule(read, qkv, beta, alpha, layer, spec.rule());
  ops.rms_norm_heads(read, weights.norm, spec.value_dim, eps);
  if (spec.sigmoid_gate) {
    ops.sigmoid_gate(read, z);
    return ops.matmul(h, weights.out, read);
  }
  ops.gate(z, read, 0, kernels::Activation::silu);
  ops.matmul(h, weights.out, z);
}

}  // namespace millrace::model

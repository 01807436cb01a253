// Layers with a state: the processor's convolution, delta rule and scan, run by run. There is no delta rule in chunks,
// as there is none on a card of 8.0.

#include "kernels/gpu/recurrent.h"

#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "kernels/gpu/delta_chunks.h"
#include "kernels/gpu/delta_step.h"

namespace millrace::kernels::gpu {

namespace {

using simulated::at;
using simulated::cpu;

/// Calls work(run, before, after) for all runs of a table, `count` floats of state at `offset` of a block going through
/// a sequence's runs.
template <typename Run>
void for_runs(const StateRuns& runs, std::int64_t offset, std::size_t count, const Run& work) {
  std::vector<float> before(count), after(count);
  for (std::int32_t s = 0; s < runs.sequences; ++s) {
    for (std::int32_t i = runs.first_run[s]; i < runs.first_run[s + 1]; ++i) {
      const StateRun& run = runs.run[i];
      if (i == runs.first_run[s]) {
        if (run.before == nullptr)
          std::fill(before.begin(), before.end(), 0.0f);
        else
          std::copy_n(reinterpret_cast<const float*>(run.before + offset), count, before.begin());
      }
      work(run, before.data(), after.data());
      if (run.after != nullptr) std::copy(after.begin(), after.end(), reinterpret_cast<float*>(run.after + offset));
      std::swap(before, after);
    }
  }
}

void convolve_all(const ConvolveCall& call) {
  const auto count = static_cast<std::size_t>((call.taps - 1) * call.channels);
  for_runs(call.runs, call.offset, count, [&](const StateRun& run, const float* before, float* after) {
    ConvolutionArgs args;
    args.x = call.x + std::int64_t{run.first_row} * call.channels;
    args.x_stride = args.channels = args.last = call.channels;
    args.rows = run.rows;
    if (call.out != nullptr) {
      args.out = call.out + std::int64_t{run.first_row} * call.out_stride;
      args.out_stride = call.out_stride;
    }
    args.weight = at(call.weight);
    args.bias = at(call.bias);
    args.silu = call.silu;
    args.taps = call.taps;
    args.before = before;
    args.after = after;
    if (run.rows > 0)
      cpu().convolve(args);
    else
      std::copy_n(before, count, after);
    for (std::int64_t r = 0; call.heads > 0 && r < run.rows; ++r)
      cpu().l2_norm(args.out != nullptr ? args.out + r * args.out_stride : args.x + r * args.x_stride, call.heads,
                    kConvolvedHead, call.eps);
  });
}

void rule_all(const DeltaRuleCall& call) {
  const std::int64_t keys = call.key_dim, values = call.value_dim;
  const std::int64_t queries = std::int64_t{call.key_heads} * keys, cols = 2 * queries + call.value_heads * values;
  const auto count = static_cast<std::size_t>(call.value_heads * keys * values);
  for_runs(call.runs, call.offset, count, [&](const StateRun& run, const float* before, float* after) {
    std::vector<float> beta(static_cast<std::size_t>(std::int64_t{run.rows} * call.value_heads));
    for (std::size_t i = 0; i < beta.size(); ++i)
      beta[i] = sigmoid_f32(
          call.beta[static_cast<std::int64_t>(run.first_row) * call.value_heads + static_cast<std::int64_t>(i)]);
    for (std::int64_t h = 0; h < call.value_heads; ++h) {
      const std::int64_t key_head = call.tiled ? h % call.key_heads : h / (call.value_heads / call.key_heads);
      for (std::int64_t v = 0; v < values; v += kStateLanes) {
        const float* const row = call.qkv + run.first_row * cols;
        DeltaRuleArgs args;
        args.query = row + key_head * keys;
        args.key = args.query + queries;
        args.value = row + 2 * queries + h * values + v;
        args.qkv_stride = cols;
        args.beta = beta.data() + h;
        const std::int64_t decays = call.channel_decays ? keys : 1;
        args.decay = call.decay + (std::int64_t{run.first_row} * call.value_heads + h) * decays;
        args.gate_stride = call.value_heads;
        args.decay_stride = call.value_heads * decays;
        args.channel_decays = call.channel_decays;
        args.out = call.out + run.first_row * (call.value_heads * values) + h * values + v;
        args.out_stride = call.value_heads * values;
        args.rows = run.rows;
        args.keys = keys;
        args.scale = call.scale;
        const std::int64_t state = (h * values + v) * keys;
        args.before = before + state;
        args.after = after + state;
        cpu().delta_rule(args);
      }
    }
  });
}

void scan_all(const ScanCall& call) {
  const std::int64_t values = call.head_dim, lanes = scan_lanes(values);
  const std::int64_t cols = call.heads * values + 2 * std::int64_t{call.groups} * call.keys;
  const auto count = static_cast<std::size_t>(call.heads * values * call.keys);
  for_runs(call.runs, call.offset, count, [&](const StateRun& run, const float* before, float* after) {
    for (std::int64_t h = 0; h < call.heads; ++h) {
      const std::int64_t group = h / (call.heads / call.groups);
      for (std::int64_t v = 0; v < values; v += lanes) {
        const float* const row = call.x + run.first_row * cols;
        ScanArgs args;
        args.value = row + h * values + v;
        args.b = row + call.heads * values + group * call.keys;
        args.c = args.b + std::int64_t{call.groups} * call.keys;
        args.x_stride = cols;
        args.step = call.step + std::int64_t{run.first_row} * call.heads + h;
        args.decay = call.decay + std::int64_t{run.first_row} * call.heads + h;
        args.head_stride = call.heads;
        args.skip = at(call.skip)[h];
        args.out = call.out + run.first_row * (call.heads * values) + h * values + v;
        args.out_stride = call.heads * values;
        args.rows = run.rows;
        args.keys = call.keys;
        args.lanes = lanes;
        const std::int64_t state = (h * values + v) * call.keys;
        args.before = before + state;
        args.after = after + state;
        cpu().scan(args);
      }
    }
  });
}

/// One op after the other, over copies of what is not to be written.
void step_all(const DeltaStepCall& call) {
  std::int64_t rows = 0;
  const StateRuns& runs = call.convolution.runs;
  for (std::int32_t i = 0; i < runs.count; ++i)
    rows = std::max<std::int64_t>(rows, runs.run[i].first_row + runs.run[i].rows);
  const std::int64_t heads = call.rule.value_heads, channels = call.convolution.channels;
  std::vector<float> x(call.convolution.x, call.convolution.x + rows * channels);
  std::vector<float> decay(call.rule.decay, call.rule.decay + rows * heads);
  for (std::size_t i = 0; i < decay.size(); ++i) {
    const std::size_t h = i % static_cast<std::size_t>(heads);
    decay[i] = exp_f32(at(call.a)[h] * softplus_f32(decay[i] + at(call.a_bias)[h]));
  }
  ConvolveCall convolution = call.convolution;
  convolution.x = x.data();
  convolution.heads = 0;
  convolve_all(convolution);
  for (std::int64_t r = 0; r < rows; ++r)
    cpu().l2_norm(x.data() + r * channels, 2 * std::int64_t{call.rule.key_heads}, call.rule.key_dim, call.eps);
  std::vector<float> mixed(static_cast<std::size_t>(rows * heads * call.rule.value_dim));
  DeltaRuleCall rule = call.rule;
  rule.qkv = x.data();
  rule.decay = decay.data();
  rule.out = mixed.data();
  rule_all(rule);
  GatedNormCall norm = call.norm;
  norm.x = mixed.data();
  norm.rows = static_cast<std::int32_t>(rows);
  norm.heads = call.rule.value_heads;
  (void)gated_norm(norm, {});
}

}  // namespace

Status convolve(const ConvolveCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, convolve_all);
}
Status delta_rule(const DeltaRuleCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, rule_all);
}
Status scan(const ScanCall& call, device::StreamRef stream) { return simulated::launch(stream, call, scan_all); }
Status delta_step(const DeltaStepCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, step_all);
}

bool has_delta_chunks() { return false; }
std::size_t delta_chunks_workspace_bytes(std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return 256; }
Status delta_chunks(const DeltaChunksCall&, device::StreamRef) { return simulated::refused(); }

}  // namespace millrace::kernels::gpu

// The launches of layers with a state, and the small ones of gates.
#include <algorithm>

#include "exec/gpu/emitter.h"
#include "kernels/gpu/offer.h"

namespace millrace::exec {

gpu::StateRuns GpuExecutor::Emitter::state_runs(std::int64_t layer, bool& borders) const {
  const std::vector<kv::Group>& groups = ops.program_->layout.groups();
  const auto group = static_cast<std::ptrdiff_t>(ops.program_->layout.place(layer).group);
  const auto before =
      std::count_if(groups.begin(), groups.begin() + group, [](const kv::Group& other) { return other.is_state(); });
  const StateTable& table = ops.states_.tables[window.first_states + static_cast<std::size_t>(before)];
  borders = table.borders;
  return {row_data<gpu::StateRun>(ops.pass_rows_.state_runs) + table.first_run,
          row_data<std::int32_t>(ops.pass_rows_.first_runs) + table.first_of_sequences, table.runs, table.sequences};
}

void GpuExecutor::Emitter::emit_sigmoid_gate(const Launch& l) {
  const Step& s = step(l.first);
  overwritten(s.out);
  if (const std::int64_t gates = cols(s.b); gates < cols(s.out))  // of whole rows, or of a row's heads
    return check(gpu::sigmoid_gate_rows(data(s.out), data(s.b), static_cast<std::int32_t>(rows(s.out) * gates),
                                        static_cast<std::int32_t>(cols(s.out) / gates), stream),
                 "sigmoid_gate");
  if (l.leaves == Forms{true, false, false})
    return check(gpu::sigmoid_gate(data(s.out), data(s.b), rows(s.out) * cols(s.out), stream), "sigmoid_gate");
  gpu::SigmoidGateCall call;
  call.x = data(s.out);
  call.gate = data(s.b);
  call.blocks = rows(s.out) * (cols(s.out) / 32);
  if (l.leaves.floats) call.out = data(s.out);
  if (l.leaves.q8) call.out_q8 = make_q8(1, s.out);
  if (l.leaves.bf16) call.out_bf16 = make_bf16(1, s.out);
  check(gpu::sigmoid_gate(call, stream), "sigmoid_gate");
}

void GpuExecutor::Emitter::emit_time_step(const Step& s) {
  overwritten(s.a);
  const std::byte *const *const a = vector(s.weight), *const *const bias = vector(s.weight2);
  if (!status.ok()) return;
  const auto together = static_cast<std::int32_t>(cols(s.a) / ops.part(s.weight).cols);
  check(gpu::time_step(data(s.out), data(s.a), a, bias, rows(s.a), static_cast<std::int32_t>(cols(s.a)), together,
                       s.least, stream),
        "time_step");
}

gpu::ConvolveCall GpuExecutor::Emitter::convolve_call(const Step& s) {
  gpu::ConvolveCall call;
  bool borders = false;
  call.runs = state_runs(s.layer, borders);
  call.offset = ops.program_->layout.state_offset(s.layer) +
                (s.convolution.taps - 1) * s.convolution.first * static_cast<std::int64_t>(sizeof(float));
  call.x = data(s.a);
  if (s.out != s.a) {
    call.out = data(s.out) + s.convolution.first;
    call.out_stride = static_cast<std::int32_t>(cols(s.out));
  }
  call.weight = vector(s.weight);
  call.bias = vector(s.weight2);
  call.silu = s.convolution.silu;
  call.taps = static_cast<std::int32_t>(s.convolution.taps);
  call.channels = static_cast<std::int32_t>(cols(s.a));
  if (borders) call.borders = ops.at<float>(ops.layout_.borders);
  return call;
}

void GpuExecutor::Emitter::emit_convolution(const Step& s) {
  overwritten(s.out);
  const gpu::ConvolveCall call = convolve_call(s);
  if (status.ok()) check(gpu::convolve(call, stream), "convolve");
}

void GpuExecutor::Emitter::emit_l2_norm(const Step& s) {
  overwritten(s.out);
  check(gpu::l2_norm_heads(data(s.out), cols(s.out), rows(s.out), static_cast<std::int32_t>(s.heads),
                           static_cast<std::int32_t>(s.head_dim), s.eps, stream),
        "l2_norm");
}

gpu::DeltaRuleCall GpuExecutor::Emitter::delta_rule_call(const Step& s) {
  const DeltaRule& rule = s.delta_rule;
  gpu::DeltaRuleCall call;
  bool borders = false;
  call.runs = state_runs(s.layer, borders);
  call.offset = ops.program_->layout.matrices_offset(s.layer);
  call.qkv = data(s.a);
  call.beta = data(s.b);
  call.decay = data(s.c);
  call.channel_decays = rule.has_channel_decays(cols(s.c));
  call.out = data(s.out);
  call.key_heads = static_cast<std::int32_t>(rule.key_heads);
  call.value_heads = static_cast<std::int32_t>(rule.value_heads);
  call.key_dim = static_cast<std::int32_t>(rule.key_dim);
  call.value_dim = static_cast<std::int32_t>(rule.value_dim);
  call.tiled = rule.tiled;
  call.scale = rule.scale;
  return call;
}

bool GpuExecutor::Emitter::by_chunks(const Step& s) const {
  return window.prompt && ops.delta_chunks_ && has_chunks(s.delta_rule, cols(s.c));
}

void GpuExecutor::Emitter::emit_delta_rule(const Step& s) {
  overwritten(s.out);
  if (by_chunks(s)) {
    const gpu::DeltaChunksCall call{delta_rule_call(s), ops.at(ops.layout_.chunks)};
    return check(gpu::delta_chunks(call, stream), "delta_chunks");
  }
  check(gpu::delta_rule(delta_rule_call(s), stream), "delta_rule");
}

/// One kernel where every sequence has one run, so a row in a pass of generated tokens. Else one after the other: a
/// prompt's convolution goes through many runs at once, its rule through many rows. A prompt's one row goes as many do.
void GpuExecutor::Emitter::emit_delta_net(const Launch& l) {
  const Step &decay = step(l.first), &convolution = step(l.first + 1), &norm = step(l.first + 2),
             &rule = step(l.first + 3);
  gpu::DeltaStepCall call;
  call.convolution = convolve_call(convolution);
  if (!gpu::offer().delta_step || call.convolution.borders != nullptr || by_chunks(rule)) {
    emit_time_step(decay);
    if (norm.head_dim == gpu::kConvolvedHead) {
      call.convolution.heads = static_cast<std::int32_t>(norm.heads);
      call.convolution.eps = norm.eps;
      overwritten(convolution.out);
      if (status.ok()) check(gpu::convolve(call.convolution, stream), "convolve");
    } else {
      emit_convolution(convolution);
      emit_l2_norm(norm);
    }
    emit_delta_rule(rule);
    return emit_gated_norm(l);
  }
  call.rule = delta_rule_call(rule);
  call.a = vector(decay.weight);
  call.a_bias = vector(decay.weight2);
  call.eps = norm.eps;
  call.norm = gated_norm_call(l, step(l.end - 2), step(l.end - 1));
  if (status.ok()) check(gpu::delta_step(call, stream), "delta_step");
}

void GpuExecutor::Emitter::emit_scan(const Step& s) {
  gpu::ScanCall call;
  bool borders = false;
  call.runs = state_runs(s.layer, borders);
  call.offset = ops.program_->layout.matrices_offset(s.layer);
  call.x = data(s.a);
  call.step = data(s.b);
  call.decay = data(s.c);
  call.skip = vector(s.weight);
  call.out = data(s.out);
  call.heads = static_cast<std::int32_t>(s.scan.heads);
  call.head_dim = static_cast<std::int32_t>(s.scan.head_dim);
  call.groups = static_cast<std::int32_t>(s.scan.groups);
  call.keys = static_cast<std::int32_t>(s.scan.keys);
  if (status.ok()) check(gpu::scan(call, stream), "scan");
}

void GpuExecutor::Emitter::emit_pick(const Launch& l) {
  const Step& s = step(l.first);
  gpu::PickCall call;
  call.x = data(s.a);
  call.cols = cols(s.a);
  call.rows = rows(s.out);
  call.heads = static_cast<std::int32_t>(s.heads);
  call.head_dim = static_cast<std::int32_t>(s.head_dim);
  call.count = 0;
  for (std::size_t i = l.first; i < l.end; ++i, ++call.count) {
    overwritten(step(i).out);
    call.first[call.count] = static_cast<std::int32_t>(step(i).first);
    call.out[call.count] = data(step(i).out);
  }
  check(gpu::pick_heads(call, stream), "pick_heads");
}

void GpuExecutor::Emitter::emit_rows(const Launch& launch) {
  using Kind = Launch::Kind;
  const Step& s = step(launch.first);
  const std::int64_t n = rows(s.out) * cols(s.out);
  overwritten(s.out);
  switch (launch.kind) {
    case Kind::activate:
      if (s.xielu) return check(gpu::xielu(*s.xielu, data(s.out), n, stream), "xielu");
      return check(gpu::activate(s.activation, data(s.out), n, stream), "activate");
    case Kind::pick_heads:
      return emit_pick(launch);
    case Kind::multiply:
      return check(gpu::multiply(data(s.out), data(s.b), n, stream), "multiply");
    case Kind::largest:
      return check(gpu::largest(data(s.a), rows(s.a), static_cast<std::int32_t>(cols(s.a)), data(s.out), stream),
                   "largest");
    case Kind::sigmoid_gate:
      return emit_sigmoid_gate(launch);
    case Kind::l2_norm:
      return emit_l2_norm(s);
    case Kind::time_step:
      return emit_time_step(s);
    case Kind::convolve:
      return emit_convolution(s);
    case Kind::delta_rule:
      return emit_delta_rule(s);
    case Kind::delta_net:
      return emit_delta_net(launch);
    case Kind::scan:
      return emit_scan(s);
    default:
      return broken("rows of this kind");
  }
}

}  // namespace millrace::exec

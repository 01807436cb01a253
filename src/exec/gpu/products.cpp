// Products: in which form their inputs lie, what the processor does of them, and their launches.
#include <algorithm>
#include <array>
#include <utility>

#include "exec/gpu/emitter.h"

namespace millrace::exec {

gpu::Q8 GpuExecutor::Emitter::q8(Act act) {
  if (const int slot = slot_of(act, false); slot >= 0) return q8_memory(slot, forms[slot].rows, cols(act));
  const gpu::Q8 made = make_q8(1, act);
  check(gpu::quantize_q8(data(act), cols(act), rows(act), static_cast<std::int32_t>(cols(act)), made, stream),
        "quantize_q8");
  return made;
}

const gpu::Bf16* GpuExecutor::Emitter::bf16(Act act) {
  if (const int slot = slot_of(act, true); slot >= 0) return ops.at<gpu::Bf16>(ops.layout_.inputs[slot]);
  gpu::Bf16* const made = make_bf16(1, act);
  check(gpu::to_bf16(data(act), rows(act) * cols(act), made, stream), "to_bf16");
  return made;
}

gpu::PromptInt8 GpuExecutor::Emitter::prompt_int8(Act act) {
  const gpu::PromptInt8 form = gpu::prompt_int8_at(ops.at(ops.layout_.rounded), rows(act), cols(act));
  if (rounded.of.buffer == act.buffer) return form;
  rounded = {act, false, rows(act)};
  const auto columns = static_cast<std::int32_t>(cols(act));
  if (const int slot = slot_of(act, true); slot >= 0) {
    const auto* x = ops.at<gpu::Bf16>(ops.layout_.inputs[slot]);
    check(gpu::round_prompt(x, rows(act), columns, form, stream), "round_prompt");
  } else {
    check(gpu::round_prompt(data(act), rows(act), columns, form, stream), "round_prompt");
  }
  return form;
}

void GpuExecutor::Emitter::launch(gpu::MatmulCall& call) {
  if (!status.ok()) return;
  if (half.x != nullptr) return check(gpu::matmul_half(call, std::exchange(half, {}), stream), "matmul, half");
  if (call.of_prompt()) return check(gpu::matmul_prompt(call, stream), "matmul, prompt");
  if (told != nullptr && launches == told_at) call.ready = told;
  const bool few = call.x_rows <= gpu::kMatvecRows;
  check(few ? gpu::matvec(call, stream) : gpu::matmul(call, stream), few ? "matvec" : "matmul");
}

gpu::MatmulCall GpuExecutor::Emitter::call_for(Act x, DType dtype, bool prompt) {
  gpu::MatmulCall call;
  call.cols = static_cast<std::int32_t>(cols(x));
  call.x_rows = rows(x);
  half = {};
  if (is_float(dtype)) {
    call.x = data(x);
    call.x_stride = cols(x);
    if (!ops.shape_.whole_rows || !ops.options_.prompt_products || !gpu::has_half_product(dtype, cols(x))) return call;
    half = gpu::half_rows_at(ops.at(ops.layout_.inputs[1]), rows(x), cols(x));
    forms[1] = {};
    check(gpu::to_half_rows(data(x), rows(x), static_cast<std::int32_t>(cols(x)), half, stream), "to_half_rows");
  } else if (prompt && ops.prompt_products_ == gpu::PromptProducts::int8) {
    call.x_rounded = prompt_int8(x);
  } else if (prompt) {
    call.x_bf16 = bf16(x);
  } else {
    call.x_q8 = q8(x);
  }
  return call;
}

const float* GpuExecutor::Emitter::host_floats(WeightRef ref) const {
  return ref.none() ? nullptr : reinterpret_cast<const float*>(ops.weights_.in_ram(ref));
}

HostShare::Matrix GpuExecutor::Emitter::host_matrix(WeightRef weight, WeightRef up, WeightRef bias) const {
  HostShare::Matrix matrix;
  matrix.rows = host_rows(weight);
  const std::int64_t first = ops.part(weight).rows - matrix.rows;
  const auto from_row = [&](WeightRef ref) {
    const residency::Part& part = ops.part(ref);
    return ops.weights_.in_ram(ref) + first * row_bytes(part.dtype, part.cols);
  };
  matrix.weight = from_row(weight);
  matrix.dtype = ops.part(weight).dtype;
  if (!up.none()) {
    matrix.up = from_row(up);
    matrix.up_dtype = ops.part(up).dtype;
  }
  if (!bias.none()) matrix.bias = host_floats(bias) + first;
  return matrix;
}

void GpuExecutor::Emitter::share_rows(Shared& shared, WeightRef weight, WeightRef up, WeightRef bias, Act to) {
  const std::int64_t rows = host_rows(weight);
  if (rows == 0) return;
  HostShare::Matrix& matrix = shared.job.matrices[static_cast<std::size_t>(shared.job.count++)];
  matrix = host_matrix(weight, up, bias);
  matrix.first_output = shared.outputs;
  shared.call.parts[shared.call.count++] = {ops.share_->device_output() + shared.outputs,
                                            data(to) + (ops.part(weight).rows - rows), cols(to),
                                            static_cast<std::int32_t>(rows)};
  shared.outputs += window.rows * rows;
}

void GpuExecutor::Emitter::hand_out(Shared& shared, Act x) {
  if (shared.job.count == 0) return;
  shared.job.number = ops.share_->next_number();
  shared.job.rows = rows(x);
  shared.job.cols = cols(x);
  check(gpu::hand_out(data(x), window.rows * cols(x), ops.share_->device_input(), ops.share_->device_input_flag(),
                      shared.job.number, ops.share_->arrived(), stream),
        "hand out");
}

void GpuExecutor::Emitter::take_in(Shared& shared, bool add) {
  if (shared.job.count == 0 || !status.ok()) return;
  shared.call.rows = static_cast<std::int32_t>(window.rows);
  shared.call.add = add;
  shared.call.flag = ops.share_->device_output_flag();
  shared.call.number = shared.job.number;
  shared.call.seen = ops.share_->seen();
  check(gpu::take_in(shared.call, stream), "take in");
  if (status.ok()) ops.share_->add(shared.job, stream);
}

void GpuExecutor::Emitter::launch_gathered(gpu::MatmulCall& call, const Launch& l) {
  constexpr std::int32_t kAligned = 32;  // columns that kernels store at once, at most
  const gpu::GatherCall gather = gather_call(l, step(l.first + 1));
  const gpu::GatherCall::Target& own = gather.targets[gather.index];
  bool straight = !gather.through_host;
  for (int d = 0; d < gather.devices; ++d)
    straight = straight && gather.targets[d].first % kAligned == 0 && gather.targets[d].own_cols % kAligned == 0;
  if (!straight) {
    launch(call);
    return check(gpu::gather(gather, stream), "gather");
  }
  const auto columns_of = [&own](const gpu::GatherCall::Target& target) {
    gpu::ProductCopies::Copy columns;
    if (target.out != nullptr) columns.y = target.out + own.first;
    if (target.bf16 != nullptr) columns.y_bf16 = target.bf16 + own.first;
    return columns;
  };
  const gpu::ProductCopies::Copy here = columns_of(own);
  call.products[0].y = here.y;
  call.products[0].y_stride = gather.cols;
  call.y_bf16 = here.y_bf16;
  call.y_bf16_cols = gather.cols;
  if (gather.add) call.effect = gpu::Effect::add;
  for (int d = 0; d < gather.devices; ++d)
    if (d != gather.index) call.also.copies[call.also.count++] = columns_of(gather.targets[d]);
  if (gather.meets_first && status.ok()) check(gpu::meet(gather, stream), "meet");
  launch(call);
  if (status.ok()) check(gpu::meet(gather, stream), "meet");
}

void GpuExecutor::Emitter::emit_product(const Launch& l) {
  const Step& s = step(l.first);
  if (l.gathers) {
    const Product& product = s.products[0];
    gpu::MatmulCall call = call_for(s.a, ops.part(product.weight).dtype);
    call.count = 1;
    call.products[0] = {matrix(product.weight), vector(product.bias), data(product.out), cols(product.out)};
    overwritten(product.out);
    return launch_gathered(call, l);
  }
  std::array<const Product*, gpu::kMostProducts> products{};
  std::size_t count = 0;
  for (std::size_t i = l.first; i < l.end; ++i)
    for (const Product& product : step(i).all_products()) products[count++] = &product;
  Shared shared;
  for (std::size_t i = 0; i < count; ++i)
    share_rows(shared, products[i]->weight, {}, products[i]->bias, l.adds ? l.out : products[i]->out);
  hand_out(shared, s.a);
  std::array<WeightRef, gpu::kMostProducts> weights;
  for (std::size_t i = 0; i < count; ++i) weights[i] = products[i]->weight;
  const Addends addends = adapt_before(std::span(weights).first(count), s.a);
  // Products of one dtype share a launch.
  bool done[gpu::kMostProducts] = {};
  for (std::size_t first = 0; first < count; ++first) {
    if (done[first]) continue;
    const DType dtype = ops.part(products[first]->weight).dtype;
    gpu::MatmulCall call = call_for(s.a, dtype);
    call.effect = l.adds ? gpu::Effect::add : gpu::Effect::store;
    const bool few = !call.of_prompt() && call.x_rows <= gpu::kMatvecRows;
    const int most = few ? gpu::kMostProducts : gpu::kMostTileProducts;
    for (std::size_t i = first; i < count && call.count < most; ++i) {
      const Product& product = *products[i];
      if (done[i] || ops.part(product.weight).dtype != dtype) continue;
      done[i] = true;
      const Act out = l.adds ? l.out : product.out;
      call.products[call.count++] = {matrix(product.weight), vector(product.bias), data(out), cols(out), addends[i]};
      overwritten(out);
    }
    launch(call);
  }
  take_in(shared, l.adds);
  std::array<Adapting, gpu::kMostProducts> changed;
  for (std::size_t i = 0; i < count; ++i) {
    const Act out = l.adds ? l.out : products[i]->out;
    changed[i] = {products[i]->weight, data(out), cols(out)};
  }
  adapt(std::span(changed).first(count), s.a);
}

void GpuExecutor::Emitter::emit_gated(const Launch& l) {
  const Step& s = step(l.first);
  if (l.gathers) return launch_gated(l);
  Shared shared;
  share_rows(shared, s.weight, s.weight2, {}, s.out);
  shared.job.matrices[0].activation = s.activation;
  shared.job.matrices[0].limit = s.limit;
  hand_out(shared, s.a);
  overwritten(s.out);
  if (l.kind == Launch::Kind::gated)
    launch_gated(l);
  else
    launch_gate_and_up(l);
  take_in(shared, false);
}

void GpuExecutor::Emitter::launch_gated(const Launch& l) {
  const Step& s = step(l.first);
  const Addends addends = adapt_before(std::array{s.weight, s.weight2}, s.a);
  gpu::MatmulCall call = call_for(s.a, ops.part(s.weight).dtype);
  call.effect = gpu::Effect::gated;
  call.activation = s.activation;
  call.limit = s.limit;
  call.count = 2;
  const bool floats = l.leaves.floats || l.gathers;
  call.products[0] = {matrix(s.weight), nullptr, floats ? data(s.out) : nullptr, cols(s.out), addends[0]};
  call.products[1] = {matrix(s.weight2), nullptr, nullptr, cols(s.out), addends[1]};
  if (l.gathers) {
    overwritten(s.out);
    return launch_gathered(call, l);
  }
  // The input's form lies in slot 0 or 1; the result's goes into the other.
  if (l.leaves.bf16) call.y_bf16 = make_bf16(slot_beside(s.a, true), s.out);
  if (l.leaves.q8) call.y_q8 = make_q8(slot_beside(s.a, false), s.out);
  launch(call);
}

void GpuExecutor::Emitter::launch_gate_and_up(const Launch& l) {
  const Step& s = step(l.first);
  const auto out_cols = cols(s.out);
  if (ops.shape_.separate_gate < out_cols) {
    broken("gate and up of different dtypes were not prepared for");
    return;
  }
  auto* const up_out = ops.at<float>(ops.layout_.up);
  const Addends addends = adapt_before(std::array{s.weight, s.weight2}, s.a);
  for (const bool second : {false, true}) {
    const WeightRef weight = second ? s.weight2 : s.weight;
    gpu::MatmulCall call = call_for(s.a, ops.part(weight).dtype);
    call.count = 1;
    call.products[0] = {matrix(weight), nullptr, second ? up_out : data(s.out), out_cols, addends[second ? 1 : 0]};
    launch(call);
  }
  const Adapting gate{s.weight, data(s.out), out_cols}, up{s.weight2, up_out, out_cols};
  if (!l.leaves.floats && adapt_gates(gate, up, s)) return;
  adapt(std::array{gate, up}, s.a);
  check(gpu::gate_mul(s.activation, s.limit, data(s.out), up_out, window.rows * out_cols, stream), "gate_mul");
}

void GpuExecutor::Emitter::emit_logits(const Step& s) {
  if (ops.logit_rows_ == 0) return;
  auto* out = ops.at<float>(ops.layout_.logits);
  const bool own = s.vocab > 0;  // rows of the head
  const Addends addends = adapt_before(std::array{s.weight}, s.a);
  gpu::MatmulCall call = call_for(s.a, ops.part(s.weight).dtype, false);
  call.count = 1;
  call.products[0] = {matrix(s.weight), vector(s.weight2), own ? data(s.out) : out,
                      own ? cols(s.out) : ops.shape_.vocab, addends[0]};
  launch(call);
  adapt(std::array{Adapting{s.weight, call.products[0].y, call.products[0].y_stride}}, s.a);
  if (own && status.ok()) {
    gpu::GatherCall gather = gather_call(s, s.out);
    gather.cols = static_cast<std::int32_t>(s.vocab);
    for (int d = 0; d < gather.devices; ++d) {
      const Peers::Device& peer = ops.peers_.devices[static_cast<std::size_t>(d)];
      gather.targets[d].out = peer.floats_at(peer.layout.logits);
    }
    check(gpu::gather(gather, stream), "gather");
  }
  if (!ops.options_.brings_results) return;
  if (s.factor != 1 && status.ok())
    check(gpu::scale(out, s.factor, ops.logit_rows_ * ops.shape_.vocab, stream), "scale");
  if (s.cap != 0 && status.ok()) check(gpu::softcap(out, s.cap, ops.logit_rows_ * ops.shape_.vocab, stream), "cap");
  if (!ops.top_only_) return;
  check(gpu::candidates(out, static_cast<std::int32_t>(ops.logit_rows_), static_cast<std::int32_t>(ops.shape_.vocab),
                        ops.at<gpu::Candidates>(ops.layout_.candidates), ops.at(ops.layout_.sample_workspace), stream),
        "candidates");
  if (ops.draws_.empty()) return;
  check(
      gpu::draw(out, static_cast<std::int32_t>(ops.logit_rows_), static_cast<std::int32_t>(ops.shape_.vocab),
                ops.at<const kernels::DrawRule>(ops.layout_.rows + ops.pass_rows_.draws),
                ops.at<const gpu::Candidates>(ops.layout_.candidates), ops.at<std::int32_t>(ops.layout_.drawn), stream),
      "draw");
}

}  // namespace millrace::exec

// Products and mixtures: in which form their inputs lie, what the processor does of them, and their launches.
#include <algorithm>
#include <array>

#include "exec/cuda_emitter.h"

namespace millrace::exec {
namespace {

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

constexpr std::int64_t kMatvecEntries = 64;  // experts of so many entries are read one by one

}  // namespace

cuda::Q8 CudaExecutor::Emitter::q8(Act act) {
  if (const int slot = slot_of(act, false); slot >= 0) return q8_memory(slot, forms[slot].rows, cols(act));
  const cuda::Q8 made = make_q8(1, act);
  check(cuda::quantize_q8(data(act), cols(act), rows(act), static_cast<std::int32_t>(cols(act)), made, stream),
        "quantize_q8");
  return made;
}

const cuda::Bf16* CudaExecutor::Emitter::bf16(Act act) {
  if (const int slot = slot_of(act, true); slot >= 0) return ops.at<cuda::Bf16>(ops.layout_.inputs[slot]);
  cuda::Bf16* const made = make_bf16(1, act);
  check(cuda::to_bf16(data(act), rows(act) * cols(act), made, stream), "to_bf16");
  return made;
}

void CudaExecutor::Emitter::launch(cuda::MatmulCall& call) {
  if (!status.ok()) return;
  if (call.x_bf16 != nullptr) return check(cuda::matmul_prompt(call, stream), "matmul, prompt");
  const bool few = call.x_rows <= cuda::kMatvecRows;
  check(few ? cuda::matvec(call, stream) : cuda::matmul(call, stream), few ? "matvec" : "matmul");
}

cuda::MatmulCall CudaExecutor::Emitter::call_for(Act x, bool floats, bool prompt) {
  cuda::MatmulCall call;
  call.cols = static_cast<std::int32_t>(cols(x));
  call.x_rows = rows(x);
  if (floats) {
    call.x = data(x);
    call.x_stride = cols(x);
  } else if (prompt) {
    call.x_bf16 = bf16(x);
  } else {
    call.x_q8 = q8(x);
  }
  return call;
}

const float* CudaExecutor::Emitter::host_floats(WeightRef ref) const {
  return ref.none() ? nullptr : reinterpret_cast<const float*>(ops.weights_.in_ram(ref));
}

HostShare::Matrix CudaExecutor::Emitter::host_matrix(WeightRef weight, WeightRef up, WeightRef bias) const {
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

void CudaExecutor::Emitter::share_rows(Shared& shared, WeightRef weight, WeightRef up, WeightRef bias, Act to) {
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

void CudaExecutor::Emitter::hand_out(Shared& shared, Act x) {
  if (shared.job.count == 0) return;
  shared.job.number = ops.share_->next_number();
  shared.job.rows = rows(x);
  shared.job.cols = cols(x);
  check(cuda::hand_out(data(x), window.rows * cols(x), ops.share_->device_input(), ops.share_->device_input_flag(),
                       shared.job.number, ops.share_->arrived(), stream),
        "hand out");
}

void CudaExecutor::Emitter::take_in(Shared& shared, bool add) {
  if (shared.job.count == 0 || !status.ok()) return;
  shared.call.rows = static_cast<std::int32_t>(window.rows);
  shared.call.add = add;
  shared.call.flag = ops.share_->device_output_flag();
  shared.call.number = shared.job.number;
  shared.call.seen = ops.share_->seen();
  check(cuda::take_in(shared.call, stream), "take in");
  if (status.ok()) ops.share_->add(shared.job, stream);
}

void CudaExecutor::Emitter::emit_product(const Launch& l) {
  const Step& s = step(l.first);
  std::array<const Product*, cuda::kMostProducts> products{};
  std::size_t count = 0;
  for (std::size_t i = l.first; i < l.end; ++i)
    for (const Product& product : step(i).all_products()) products[count++] = &product;
  Shared shared;
  for (std::size_t i = 0; i < count; ++i)
    share_rows(shared, products[i]->weight, {}, products[i]->bias, l.adds ? l.out : products[i]->out);
  hand_out(shared, s.a);
  // Products of one dtype share a launch.
  bool done[cuda::kMostProducts] = {};
  for (std::size_t first = 0; first < count; ++first) {
    if (done[first]) continue;
    const DType dtype = ops.part(products[first]->weight).dtype;
    cuda::MatmulCall call = call_for(s.a, is_float(dtype), in_prompt(s.a));
    call.effect = l.adds ? cuda::Effect::add : cuda::Effect::store;
    const bool few = call.x_bf16 == nullptr && call.x_rows <= cuda::kMatvecRows;
    const int most = few ? cuda::kMostProducts : cuda::kMostTileProducts;
    for (std::size_t i = first; i < count && call.count < most; ++i) {
      const Product& product = *products[i];
      if (done[i] || ops.part(product.weight).dtype != dtype) continue;
      done[i] = true;
      const Act out = l.adds ? l.out : product.out;
      call.products[call.count++] = {matrix(product.weight), vector(product.bias), data(out), cols(out)};
      overwritten(out);
    }
    launch(call);
  }
  take_in(shared, l.adds);
}

void CudaExecutor::Emitter::emit_feed_forward(const Launch& l) {
  const FeedForwardSteps s = ops.program_->feed_forward_at(l.first).value();
  Shared shared;
  HostShare::Matrix& both = shared.job.matrices[0];
  both = host_matrix(s.gate, s.up, {});
  both.scale = host_floats(s.gate_scale);
  both.up_scale = host_floats(s.up_scale);
  both.activation = s.activation;
  shared.job.count = 1;
  shared.job.down = host_matrix(s.down, {}, s.down_bias);
  shared.job.down.scale = host_floats(s.down_scale);
  shared.call.parts[0] = {ops.share_->device_output(), data(l.out), cols(l.out),
                          static_cast<std::int32_t>(shared.job.down.rows)};
  shared.call.count = 1;
  hand_out(shared, s.x);
  overwritten(l.out);
  for (const WeightRef weight : {s.gate, s.up, s.down}) {
    need(weight);  // in RAM: nothing of it crosses
    weight_bytes += ops.part(weight).bytes();
  }
  take_in(shared, l.adds);
}

void CudaExecutor::Emitter::emit_gated(const Launch& l) {
  const Step& s = step(l.first);
  Shared shared;
  share_rows(shared, s.weight, s.weight2, {}, s.out);
  shared.job.matrices[0].activation = s.activation;
  hand_out(shared, s.a);
  overwritten(s.out);
  if (l.kind == Launch::Kind::gated)
    launch_gated(l);
  else
    launch_gate_and_up(s);
  take_in(shared, false);
}

void CudaExecutor::Emitter::launch_gated(const Launch& l) {
  const Step& s = step(l.first);
  cuda::MatmulCall call = call_for(s.a, is_float(ops.part(s.weight).dtype), in_prompt(s.a));
  call.effect = cuda::Effect::gated;
  call.activation = s.activation;
  call.count = 2;
  call.products[0] = {matrix(s.weight), nullptr, l.leaves.floats ? data(s.out) : nullptr, cols(s.out)};
  call.products[1] = {matrix(s.weight2), nullptr, nullptr, cols(s.out)};
  // The input's form lies in slot 0 or 1; the result's goes into the other.
  if (l.leaves.bf16) call.y_bf16 = make_bf16(slot_beside(s.a, true), s.out);
  if (l.leaves.q8) call.y_q8 = make_q8(slot_beside(s.a, false), s.out);
  launch(call);
}

void CudaExecutor::Emitter::launch_gate_and_up(const Step& s) {
  const auto out_cols = cols(s.out);
  const std::uint64_t up_bytes = static_cast<std::uint64_t>(work_rows(ops.shape_) * out_cols) * sizeof(float);
  if (ops.up_scratch_.bytes() < up_bytes) {
    broken("gate and up of different dtypes were not prepared for");
    return;
  }
  auto* const up_out = reinterpret_cast<float*>(ops.up_scratch_.data());
  for (const bool second : {false, true}) {
    const WeightRef weight = second ? s.weight2 : s.weight;
    cuda::MatmulCall call = call_for(s.a, is_float(ops.part(weight).dtype), in_prompt(s.a));
    call.count = 1;
    call.products[0] = {matrix(weight), nullptr, second ? up_out : data(s.out), out_cols};
    launch(call);
  }
  check(cuda::gate_mul(s.activation, data(s.out), up_out, window.rows * out_cols, stream), "gate_mul");
}

/// The experts of each row and their weights.
void CudaExecutor::Emitter::route(const Experts& experts, const float* scores, std::int32_t* chosen, float* weights) {
  const auto rows = static_cast<std::int32_t>(window.rows);
  const float route_bias = ops.route_bias();
  if (experts.plain_router() && route_bias == 0)
    return check(cuda::route(scores, rows, experts.count, experts.top_k, experts.normalize, experts.scale, chosen,
                             weights, stream),
                 "route");
  cuda::ChooseCall call;
  call.scores = scores;
  call.rows = rows;
  call.experts = experts.count;
  call.top_k = experts.top_k;
  using Given = cuda::ChooseCall::Gating;
  call.gating = experts.gating == Gating::sigmoid   ? Given::sigmoid
                : experts.gating == Gating::softmax ? Given::softmax
                                                    : Given::softmax_chosen;
  call.groups = experts.groups;
  call.groups_used = experts.groups_used;
  call.bias = vector(experts.selection_bias);
  call.normalize = experts.normalize;
  call.scale = experts.scale;
  call.output_scale = vector(experts.output_scale);
  call.hidden_scale = vector(experts.hidden_scale);
  if (route_bias > 0) {
    call.near = ops.options_.experts->gpu(ops.options_.expert_gpu).tiers(experts.first_unit);
    call.near_tiers = ops.options_.experts->fastest_tier();
    call.near_of_range = route_bias;
  }
  call.chosen = chosen;
  call.weights = weights;
  if (status.ok()) check(cuda::choose(call, stream), "route");
}

/// The experts that came with the rows take the places of those that the router chose, whose weights they get.
void CudaExecutor::Emitter::reroute(std::int64_t layer, std::int32_t* chosen) {
  const std::int64_t top_k = ops.shape_.top_k;
  const auto* from = row_data<std::int32_t>(ops.pass_rows_.chosen) + (layer * ops.rows_ + window.first) * top_k;
  check(cudaMemcpyAsync(chosen, from, static_cast<std::size_t>(window.rows * top_k) * sizeof(*chosen),
                        cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync");
}

cuda::ExpertCall CudaExecutor::Emitter::expert_call(const Experts& experts, int part_index) {
  const WeightRef ref{experts.first_unit, part_index};
  const residency::Part& part = ops.part(ref);
  const auto& parts = ops.units_.units()[static_cast<std::size_t>(experts.first_unit)].parts;
  cuda::ExpertCall call;
  call.weight = ops.weights_.entry(ref);
  call.address_stride = static_cast<std::int32_t>(parts.size());
  call.dtype = part.dtype;
  call.rows = static_cast<std::int32_t>(part.rows);
  call.cols = static_cast<std::int32_t>(part.cols);
  call.entries = static_cast<std::int32_t>(window.rows * experts.top_k);
  call.experts = experts.count;
  call.chosen = ops.at<std::int32_t>(ops.layout_.chosen);
  call.sorted = ops.at<std::int32_t>(ops.layout_.sorted);
  call.expert_first = ops.at<std::int32_t>(ops.layout_.expert_first);
  weight_bytes += part.bytes() * static_cast<std::uint64_t>(std::min<std::int64_t>(call.entries, experts.count));
  return call;
}

void CudaExecutor::Emitter::launch(const cuda::ExpertCall& call, bool few) {
  if (!status.ok()) return;
  check(few ? cuda::matvec_experts(call, stream) : cuda::matmul_experts(call, stream),
        few ? "matvec_experts" : "matmul_experts");
}

void CudaExecutor::Emitter::hand_out_experts(const Step& s, std::uint32_t number) {
  const ExpertShare& share = *ops.expert_share_;
  cuda::HandOutExpertsCall call;
  call.from = data(s.a);
  call.count = window.rows * cols(s.a);
  call.chosen = ops.at<std::int32_t>(ops.layout_.chosen);
  call.entries = static_cast<std::int32_t>(window.rows * s.experts.top_k);
  call.to = share.device_input();
  call.to_chosen = share.device_chosen();
  call.flag = share.device_input_flag();
  call.number = number;
  call.arrived = share.arrived();
  check(cuda::hand_out_experts(call, stream), "hand out");
}

const Experts* CudaExecutor::Emitter::ask_next_router(const Experts& experts, std::uint32_t number) {
  const RouterAhead* const next = ops.router_behind(experts);
  if (next == nullptr) return nullptr;
  const ExpertShare& share = *ops.expert_share_;
  const auto count = static_cast<std::int32_t>(window.rows), dim = static_cast<std::int32_t>(cols(next->state));
  auto* const normed = ops.at<float>(ops.layout_.guess_rows);
  auto* const scores = ops.at<float>(ops.layout_.guess_scores);
  auto* const chosen = ops.at<std::int32_t>(ops.layout_.guess_chosen);
  auto* const weights = ops.at<float>(ops.layout_.guess_weights);
  const std::byte* const* norm = vector(next->norm);
  cuda::MatmulCall router;
  router.cols = dim;
  router.x_rows = count;
  router.x = normed;
  router.x_stride = dim;
  router.products[router.count++] = {matrix(next->router), vector(next->experts.router_bias), scores,
                                     next->experts.count};
  if (!status.ok()) return nullptr;
  check(cuda::rms_norm(data(next->state), nullptr, norm, count, dim, next->eps, normed, {}, stream), "rms_norm");
  launch(router);
  route(next->experts, scores, chosen, weights);
  cuda::HandOutExpertsCall call;
  call.from = weights;
  call.count = window.rows * next->experts.top_k;
  call.chosen = chosen;
  call.entries = static_cast<std::int32_t>(call.count);
  call.to = share.device_guess_weights();
  call.to_chosen = share.device_guess();
  call.flag = share.device_guess_flag();
  call.number = number;
  call.arrived = share.arrived();
  check(cuda::hand_out_experts(call, stream), "hand out");
  return &next->experts;
}

void CudaExecutor::Emitter::claim_experts(const Experts& experts, cuda::ExpertCall& hidden, cuda::ExpertCall& down) {
  const residency::DeviceExperts& flow = *ops.options_.experts;
  const residency::ExpertSlots& here = flow.gpu(ops.options_.expert_gpu);
  const std::int32_t rows = hidden.entries / experts.top_k;
  const int permille = flow.link().of(rows);
  if (permille == 0) return;
  cuda::ClaimExpertsCall call;
  call.chosen = hidden.chosen;
  call.entries = hidden.entries;
  call.experts = experts.count;
  call.parts = flow.parts_of_expert();
  call.here = ops.weights_.entry({experts.first_unit, 0});
  call.absent = here.absent();
  call.in_ram = here.in_ram(experts.first_unit);
  call.permille = permille;
  call.table = here.claimed();
  check(cuda::claim_experts(call, stream), "claim");
  hidden.weight = call.table + experts.first_part();
  hidden.up = call.table + experts.up_part;
  down.weight = call.table + experts.down_part;
}

std::int64_t CudaExecutor::Emitter::first_of_result(const Step& s) const {
  if (s.experts.own_hidden.buffer < 0) return 0;
  const Step* gather = &s;
  while (gather->kind != Kind::gather || gather->a != s.out) ++gather;  // the decoder records one
  return gather->first;
}

void CudaExecutor::Emitter::take_in_experts(const Step& s, std::uint32_t number, const Experts* ahead) {
  if (!status.ok()) return;
  ExpertShare& share = ops.computing_share();
  cuda::TakeInExpertsCall call;
  call.place = share.device_places();
  call.from = share.device_output() + first_of_result(s);
  call.from_stride = cols(s.a);
  call.to = ops.at<float>(ops.layout_.expert_out);
  call.entries = static_cast<std::int32_t>(window.rows * s.experts.top_k);
  call.cols = static_cast<std::int32_t>(cols(s.out));
  call.flag = share.device_output_flag();
  call.number = number;
  call.seen = ops.follows_experts() ? reinterpret_cast<std::uint32_t*>(ops.followed_seen_.data()) : share.seen();
  check(cuda::take_in_experts(call, stream), "take in");
  if (ops.follows_experts()) return;
  const ExpertBiases& biases = ops.expert_biases_.at(s.experts.first_unit);
  const auto bias = [](const std::vector<float>& all) { return all.empty() ? nullptr : all.data(); };
  if (status.ok())
    share.add({number, window.rows, &s.experts, bias(biases.gate), bias(biases.up), bias(biases.down),
               bias(biases.inner_scale), bias(biases.up_scale), bias(biases.down_scale), ahead},
              stream);
}

void CudaExecutor::Emitter::activate(const cuda::ExpertCall& hidden, const cuda::ExpertCall& down, bool of_wave) {
  if (!status.ok()) return;
  cuda::ActivateEntriesCall call;
  call.activation = hidden.activation;
  call.x = hidden.y;
  if (hidden.rows == down.cols) call.q8 = down.x_q8;  // else a shard's, to be gathered
  call.entries = hidden.entries;
  call.cols = hidden.rows;
  if (of_wave) {
    call.sorted = hidden.sorted;
    call.expert_first = hidden.expert_first;
    call.experts = hidden.experts;
  }
  check(cuda::activate_entries(call, stream), "activate");
}

void CudaExecutor::Emitter::launch_waves(const Step& s, cuda::ExpertCall hidden, cuda::ExpertCall down) {
  const Experts& experts = s.experts;
  residency::DeviceExperts& flow = *ops.options_.experts;
  const std::size_t gpu = ops.options_.expert_gpu;
  const std::int32_t* const expert_first = hidden.expert_first;
  do {
    if (!status.ok()) return;
    const auto wave = flow.acquire(gpu, stream, ops.cancelled_);
    if (!wave.ok()) {
      status = wave.status();
      return;
    }
    for (cuda::ExpertCall* const call : {&hidden, &down}) {
      call->expert_first = expert_first + wave->first;
      call->experts = wave->count;
    }
    hidden.weight = wave->entries + experts.first_part();
    hidden.up = wave->entries + experts.up_part;
    down.weight = wave->entries + experts.down_part;
    if (hidden.bias != nullptr) {
      hidden.bias = wave->bias(experts.gated() ? 0 : 1);
      hidden.up_bias = wave->bias(1);
      down.bias = wave->bias(2);
    }
    if (hidden.scale != nullptr) hidden.scale = wave->bias(3);
    if (hidden.up_scale != nullptr) hidden.up_scale = wave->bias(4);
    if (down.scale != nullptr) down.scale = wave->bias(5);
    check(cuda::matmul_experts(hidden, stream), "matmul_experts");
    if (!experts.gated()) activate(hidden, down, true);
    gather_hidden(s, down, true);
    if (status.ok()) check(cuda::matmul_experts(down, stream), "matmul_experts");
    if (status.ok()) status = flow.let_go(gpu, stream, ops.cancelled_);
  } while (!flow.layer_ended(gpu));
}

void CudaExecutor::Emitter::emit_router(const Step& s, const Step* gate) {
  auto* const scores = ops.at<float>(ops.layout_.scores);
  cuda::MatmulCall router = call_for(s.b, is_float(ops.part(s.weight).dtype), false);
  router.products[router.count++] = {matrix(s.weight), vector(s.experts.router_bias), scores, s.experts.count};
  if (gate != nullptr) {
    const Product& made = gate->products[0];
    router.products[router.count++] = {matrix(made.weight), vector(made.bias), data(made.out), cols(made.out)};
    overwritten(made.out);
  }
  launch(router);
  route(s.experts, scores, ops.at<std::int32_t>(ops.layout_.chosen), ops.at<float>(ops.layout_.weights));
}

void CudaExecutor::Emitter::emit_shared_expert(const Launch& l) {
  const std::size_t down = l.first + 1;
  const bool floats = is_float(ops.part(step(down).products[0].weight).dtype);
  emit_gated({Launch::Kind::gated, false, {floats, !floats, false}, l.first, down, step(l.first).out});
  emit_product({Launch::Kind::product, false, {}, down, down + 1, step(down).products[0].out});
}

void CudaExecutor::Emitter::combine(const Launch& l, const Step& s, const float* expert_out, bool joined) {
  overwritten(l.out);
  cuda::CombineCall call;
  call.expert_out = expert_out;
  call.weights = ops.at<float>(ops.layout_.weights);
  call.rows = static_cast<std::int32_t>(window.rows);
  call.top_k = s.experts.top_k;
  call.places = joined ? call.top_k + 1 : call.top_k;
  call.cols = static_cast<std::int32_t>(cols(l.out));
  call.residual = l.adds;
  call.y = data(l.out);
  const Step& added = step(l.end - (l.adds ? 2 : 1));
  if (added.kind == Kind::add) {
    call.shared = joined ? expert_out + std::int64_t{call.top_k} * call.cols : data(added.b);
    call.shared_stride = joined ? std::int64_t{call.places} * call.cols : call.cols;
  }
  for (std::size_t i = l.first; step(i).kind != Kind::moe; ++i)
    if (step(i).kind == Kind::sigmoid_gate) call.shared_gate = data(step(i).b);
  check(cuda::combine(call, stream), "combine_experts");
}

void CudaExecutor::Emitter::make_expert_calls(const Step& s, const Launch* joined, cuda::ExpertCall& hidden,
                                              cuda::ExpertCall& down) {
  const Experts& experts = s.experts;
  hidden = expert_call(experts, experts.first_part());
  const residency::Part& up = ops.part({experts.first_unit, experts.up_part});
  const residency::Part& down_part = ops.part({experts.first_unit, experts.down_part});
  hidden.effect = experts.gated() ? cuda::Effect::gated : cuda::Effect::store;
  hidden.activation = experts.activation;
  hidden.bias = vector(experts.gated() ? experts.gate_bias : experts.up_bias);
  hidden.up_bias = vector(experts.up_bias);
  hidden.bias_stride = static_cast<std::int32_t>(down_part.cols);
  hidden.scale = vector(experts.inner_scale);
  hidden.up_scale = vector(experts.up_scale);
  hidden.up = ops.weights_.entry({experts.first_unit, experts.up_part});
  hidden.up_dtype = up.dtype;
  if (experts.gated())
    weight_bytes += up.bytes() * static_cast<std::uint64_t>(std::min<std::int64_t>(hidden.entries, experts.count));
  if (is_float(hidden.dtype) != is_float(up.dtype)) return broken("experts whose gate and up differ in kind");
  if (is_float(hidden.dtype)) {
    hidden.x = data(s.a);
  } else {
    hidden.x_q8 = q8(s.a);
  }
  down = expert_call(experts, experts.down_part);
  down.bias = vector(experts.down_bias);
  down.bias_stride = hidden.cols;
  down.scale = vector(experts.down_scale);
  hidden.entries_per_x = experts.top_k;
  if (joined != nullptr) {
    const Step &gated = step(joined->first), &result = step(joined->first + 1);
    hidden.shared = matrix(gated.weight).address;
    hidden.shared_up = matrix(gated.weight2).address;
    down.shared = matrix(result.products[0].weight).address;
    hidden.places = down.places = ++hidden.entries_per_x;
    hidden.entries = down.entries = static_cast<std::int32_t>(window.rows) * hidden.places;
  }
  if (is_float(down_part.dtype)) {
    down.x = hidden.y = ops.at<float>(ops.layout_.hidden);
  } else if (experts.gated()) {
    down.x_q8 = hidden.y_q8 = cuda::q8_at(ops.at(ops.layout_.hidden), hidden.entries, hidden.rows);
  } else {
    hidden.y = ops.at<float>(ops.layout_.hidden);
    down.x_q8 = cuda::q8_at(ops.at(ops.layout_.hidden_q8), hidden.entries, hidden.rows);
  }
  if (experts.own_hidden.buffer >= 0) {  // and the others' come from them
    hidden.y = data(experts.own_hidden);
    hidden.y_q8 = {};
    if (down.x_q8.q != nullptr) down.x_q8 = cuda::q8_at(ops.at(ops.layout_.hidden), down.entries, down.cols);
  }
  down.y = ops.at<float>(ops.layout_.expert_out);
}

void CudaExecutor::Emitter::gather_hidden(const Step& s, const cuda::ExpertCall& down, bool of_wave) {
  if (s.experts.own_hidden.buffer < 0 || !status.ok()) return;
  cuda::GatherCall call = gather_call(s, s.experts.own_hidden);
  call.rows = down.entries;
  call.cols = down.cols;
  if (of_wave) {
    call.some = down.sorted;
    call.begin = down.expert_first;
    call.end = down.expert_first + down.experts;
  }
  for (int d = 0; d < call.devices; ++d) {
    const Shards::Device& device = ops.shards_.devices[static_cast<std::size_t>(d)];
    cuda::GatherCall::Target& target = call.targets[d];
    std::byte* const to = device.memory + device.layout.hidden;
    target.own_cols /= s.experts.top_k;
    if (down.x != nullptr)
      target.out = reinterpret_cast<float*>(to);
    else
      target.q8 = cuda::q8_at(to, call.rows, call.cols);
  }
  check(cuda::gather(call, stream), "gather");
}

void CudaExecutor::Emitter::emit_moe(const Launch& l) {
  const bool shares = step(l.first).kind == Kind::gated;  // then the first two steps are an expert of all rows
  const std::size_t begin = shares ? l.first + 2 : l.first;
  std::size_t at = begin;
  while (step(at).kind != Kind::moe) ++at;
  const Step& s = step(at);
  const Experts& experts = s.experts;
  const std::int64_t entries = window.rows * experts.top_k;
  const bool few = entries <= kMatvecEntries, joined = shares && few;
  auto* chosen = ops.at<std::int32_t>(ops.layout_.chosen);
  if (shares && !joined) emit_shared_expert(l);
  emit_router(s, step(begin).kind == Kind::matmul ? &step(begin) : nullptr);
  if (ops.shape_.routed_layers > 0) reroute(s.layer, chosen);
  std::uint32_t number = 0;  // of the exchange
  if (ops.shares_experts()) number = ops.next_expert_job();
  if (ops.shares_experts() && ops.leads_experts()) hand_out_experts(s, number);
  const Experts* const ahead = ops.guessing_ ? ask_next_router(experts, number) : nullptr;
  if (!few || ops.brings_experts()) {
    check(cuda::sort_entries(chosen, static_cast<std::int32_t>(entries), experts.count,
                             ops.at<std::int32_t>(ops.layout_.sorted), ops.at<std::int32_t>(ops.layout_.expert_first),
                             stream),
          "sort_entries");
  }
  cuda::ExpertCall hidden, down;
  make_expert_calls(s, joined ? &l : nullptr, hidden, down);
  if (!status.ok()) return;
  if (ops.shares_experts()) claim_experts(experts, hidden, down);
  if (ops.brings_experts()) {
    launch_waves(s, hidden, down);
  } else {
    launch(hidden, few);
    if (!experts.gated()) activate(hidden, down, false);
    gather_hidden(s, down, false);
    launch(down, few);
  }
  if (ops.shares_experts()) take_in_experts(s, number, ahead);
  combine(l, s, down.y, joined);
}

void CudaExecutor::Emitter::emit_logits(const Step& s) {
  if (ops.logit_rows_ == 0) return;
  auto* out = ops.at<float>(ops.layout_.logits);
  const bool own = s.vocab > 0;  // rows of the head
  cuda::MatmulCall call = call_for(s.a, is_float(ops.part(s.weight).dtype), false);
  call.count = 1;
  call.products[0] = {matrix(s.weight), nullptr, own ? data(s.out) : out, own ? cols(s.out) : ops.shape_.vocab};
  launch(call);
  if (own && status.ok()) {
    cuda::GatherCall gather = gather_call(s, s.out);
    gather.cols = static_cast<std::int32_t>(s.vocab);
    for (int d = 0; d < gather.devices; ++d) {
      const Shards::Device& device = ops.shards_.devices[static_cast<std::size_t>(d)];
      gather.targets[d].out = reinterpret_cast<float*>(device.memory + device.layout.logits);
    }
    check(cuda::gather(gather, stream), "gather");
  }
  if (!ops.options_.brings_results) return;
  if (s.factor != 1 && status.ok())
    check(cuda::scale(out, s.factor, ops.logit_rows_ * ops.shape_.vocab, stream), "scale");
  if (s.cap != 0 && status.ok()) check(cuda::softcap(out, s.cap, ops.logit_rows_ * ops.shape_.vocab, stream), "cap");
  if (!ops.top_only_) return;
  check(
      cuda::candidates(out, static_cast<std::int32_t>(ops.logit_rows_), static_cast<std::int32_t>(ops.shape_.vocab),
                       ops.at<cuda::Candidates>(ops.layout_.candidates), ops.at(ops.layout_.sample_workspace), stream),
      "candidates");
}

}  // namespace millrace::exec

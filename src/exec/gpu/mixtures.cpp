// Mixtures on a GPU: who computes with the experts of a pass, and their launches.
#include <algorithm>

#include "exec/gpu/emitter.h"
#include "kernels/gpu/offer.h"

namespace millrace::exec {

namespace {

ExpertShare::Sizes expert_share_sizes(const PassShape& shape) {
  return {std::min(kExpertShareRows, shape.max_rows), shape.experts, shape.top_k, shape.model_dim, shape.expert_ff};
}

}  // namespace

std::uint64_t expert_share_bytes(const PassShape& shape, const kernels::Table& kernels, int threads) {
  return ExpertShare::bytes(expert_share_sizes(shape), kernels, threads);
}

Status GpuExecutor::prepare_experts() {
  if (options_.experts.slots == nullptr) return {};
  if (!gpu::offer().host_rows)
    return error(
        Code::unsupported,
        "{} computes with mixtures whose experts all lie in the GPU's memory, and these do not; use --device cpu",
        gpu::offer().name);
  routers_.clear();
  expert_biases_.clear();
  if (!leads_experts()) return {};
  if (options_.experts.prefetch != Prefetch::off && !options_.experts.slots->all_in_ram())
    routers_ = routers_ahead(programs_[0]);
  if (has_all_experts()) MR_RETURN_IF_ERROR(add_biases(*this));
  MR_ASSIGN_OR_RETURN(expert_share_,
                      ExpertShare::create(expert_share_sizes(shape_), *options_.experts.slots, *options_.processor.pool,
                                          *options_.processor.kernels, *options_.processor.ram, options_.trace));
  return {};
}

Status GpuExecutor::add_biases(const GpuExecutor& member) {
  const device::OnGpu on(member.options_.device);
  for (const Step& step : member.programs_[0].steps) {
    if (step.kind != Step::Kind::moe) continue;
    const Experts& experts = step.experts;
    const residency::Part &first = member.part({experts.first_unit, experts.first_part()}),
                          &down = member.part({experts.first_unit, experts.down_part});
    // Of each expert `rows` of `size` elements, from `begin` on.
    const auto read = [&](WeightRef ref, std::int64_t size, std::int64_t begin, std::int64_t rows,
                          std::vector<float>& out) -> Status {
      if (ref.none()) return {};
      out.resize(static_cast<std::size_t>(experts.count * size));
      const auto bytes = [](std::int64_t floats) { return static_cast<std::size_t>(floats) * sizeof(float); };
      MR_RETURN_IF_ERROR(device::read_device_rows(out.data() + begin, bytes(size), member.weights_.address(ref),
                                                  bytes(size), bytes(rows), static_cast<std::size_t>(experts.count)));
      return {};
    };
    ExpertBiases& biases = expert_biases_[experts.first_unit];
    MR_RETURN_IF_ERROR(read(experts.gate_bias, down.cols, step.first, first.rows, biases.gate));
    MR_RETURN_IF_ERROR(read(experts.up_bias, down.cols, step.first, first.rows, biases.up));
    MR_RETURN_IF_ERROR(read(experts.down_bias, first.cols, biases.down_rows, down.rows, biases.down));
    MR_RETURN_IF_ERROR(read(experts.inner_scale, 1, 0, 1, biases.inner_scale));
    MR_RETURN_IF_ERROR(read(experts.up_scale, 1, 0, 1, biases.up_scale));
    MR_RETURN_IF_ERROR(read(experts.down_scale, 1, 0, 1, biases.down_scale));
    biases.down_rows += down.rows;
  }
  return {};
}

Status GpuExecutor::follow(ExpertShare& leaders) {
  const device::OnGpu on(options_.device);
  MR_RETURN_IF_ERROR(leaders.check_seen());
  MR_ASSIGN_OR_RETURN(followed_seen_, device::DeviceBuffer::allocate(sizeof(std::uint32_t)));
  MR_RETURN_IF_ERROR(device::clear_device(followed_seen_));
  followed_ = &leaders;
  return {};
}

/// Passes of few rows of generated tokens, or of a short prompt; those of many touch most experts anyway.
void GpuExecutor::begin_guesses() {
  may_guess_ =
      shares_experts() && rows_ <= kGuessedRows && windows_.size() == 1 && !batch_->wants_hidden && !routers_.empty();
  guessing_ = may_guess_ && (options_.experts.prefetch == Prefetch::always || trial_.on());
}

const RouterAhead* GpuExecutor::router_behind(const Experts& experts) const {
  const auto here = std::find_if(routers_.begin(), routers_.end(), [&](const RouterAhead& router) {
    return router.experts.first_unit == experts.first_unit;
  });
  if (here == routers_.end() || here + 1 == routers_.end()) return nullptr;
  const RouterAhead& next = here[1];
  if (!next.known() || kernels::uses_q8(part(next.router).dtype)) return nullptr;
  const Buffer& state = program_->buffer(next.state);
  return state.rows != Rows::logits && state.cols == part(next.norm).cols ? &next : nullptr;
}

/// The slots of this pass; and in passes of many rows, in which order it calls for the experts of which layer.
Status GpuExecutor::begin_experts() {
  if (options_.experts.slots == nullptr) return {};
  if (has_all_experts()) MR_RETURN_IF_ERROR(options_.experts.slots->begin_pass());
  MR_RETURN_IF_ERROR(options_.experts.slots->publish(options_.experts.gpu, stream_));
  begin_guesses();
  if (!brings_experts()) return {};
  std::vector<residency::DeviceExperts::Layer> layers;
  const auto& steps = program_->steps;
  for (std::size_t begin = 0; begin < steps.size(); begin = program_->block_end(begin))
    for (std::size_t w = 0; w < windows_.size(); ++w)
      for (std::size_t i = begin; i < program_->block_end(begin); ++i)
        if (steps[i].kind == Step::Kind::moe) {
          const Experts& experts = steps[i].experts;
          const std::int64_t ff = part({experts.first_unit, experts.down_part}).cols,
                             dim = part({experts.first_unit, experts.up_part}).cols;
          layers.push_back({experts.first_unit,
                            experts.count,
                            {{experts.gate_bias, ff},
                             {experts.up_bias, ff},
                             {experts.down_bias, dim},
                             {experts.inner_scale, 1},
                             {experts.up_scale, 1},
                             {experts.down_scale, 1}}});
        }
  options_.experts.slots->begin_waves(options_.experts.gpu, std::move(layers));
  return {};
}

// --- Launches ---

static constexpr std::int64_t kMatvecEntries = 64;  // experts of so many entries are read one by one

/// The experts of each row and their weights.
void GpuExecutor::Emitter::route(const Experts& experts, const float* scores, std::int32_t* chosen, float* weights) {
  const auto rows = static_cast<std::int32_t>(window.rows);
  if (experts.plain_router())
    return check(gpu::route(scores, rows, experts.count, experts.top_k, experts.normalize, experts.scale, chosen,
                            weights, stream),
                 "route");
  gpu::ChooseCall call;
  call.scores = scores;
  call.rows = rows;
  call.experts = experts.count;
  call.top_k = experts.top_k;
  using Given = gpu::ChooseCall::Gating;
  call.gating = experts.gating == Gating::sigmoid        ? Given::sigmoid
                : experts.gating == Gating::softmax      ? Given::softmax
                : experts.gating == Gating::sparse_mixer ? Given::sparse_mixer
                                                         : Given::softmax_chosen;
  call.groups = experts.groups;
  call.groups_used = experts.groups_used;
  call.bias = vector(experts.selection_bias);
  call.normalize = experts.normalize;
  call.scale = experts.scale;
  call.output_scale = vector(experts.output_scale);
  call.hidden_scale = vector(experts.hidden_scale);
  call.chosen = chosen;
  call.weights = weights;
  if (status.ok()) check(gpu::choose(call, stream), "route");
}

/// The experts that came with the rows take the places of those that the router chose, whose weights they get.
void GpuExecutor::Emitter::reroute(std::int64_t layer, std::int32_t* chosen) {
  const std::int64_t top_k = ops.shape_.top_k;
  const auto* from = row_data<std::int32_t>(ops.pass_rows_.chosen) + (layer * ops.rows_ + window.first) * top_k;
  check(device::copy_on_device(chosen, from, static_cast<std::size_t>(window.rows * top_k) * sizeof(*chosen), stream),
        "copy");
}

gpu::ExpertCall GpuExecutor::Emitter::expert_call(const Experts& experts, int part_index) {
  const WeightRef ref{experts.first_unit, part_index};
  const residency::Part& part = ops.part(ref);
  const auto& parts = ops.units_.units()[static_cast<std::size_t>(experts.first_unit)].parts;
  gpu::ExpertCall call;
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

void GpuExecutor::Emitter::launch(const gpu::ExpertCall& call, bool few) {
  if (!status.ok()) return;
  check(few ? gpu::matvec_experts(call, stream) : gpu::matmul_experts(call, stream),
        few ? "matvec_experts" : "matmul_experts");
}

void GpuExecutor::Emitter::hand_out_experts(const Step& s, std::uint32_t number) {
  const ExpertShare& share = *ops.expert_share_;
  gpu::HandOutExpertsCall call;
  call.from = data(s.a);
  call.count = window.rows * cols(s.a);
  call.chosen = ops.at<std::int32_t>(ops.layout_.chosen);
  call.entries = static_cast<std::int32_t>(window.rows * s.experts.top_k);
  call.to = share.device_input();
  call.to_chosen = share.device_chosen();
  call.flag = share.device_input_flag();
  call.number = number;
  call.arrived = share.arrived();
  check(gpu::hand_out_experts(call, stream), "hand out");
}

const Experts* GpuExecutor::Emitter::ask_next_router(const Experts& experts, std::uint32_t number) {
  const RouterAhead* const next = ops.router_behind(experts);
  if (next == nullptr) return nullptr;
  const ExpertShare& share = *ops.expert_share_;
  const auto count = static_cast<std::int32_t>(window.rows), dim = static_cast<std::int32_t>(cols(next->state));
  auto* const normed = ops.at<float>(ops.layout_.guess_rows);
  auto* const scores = ops.at<float>(ops.layout_.guess_scores);
  auto* const chosen = ops.at<std::int32_t>(ops.layout_.guess_chosen);
  auto* const weights = ops.at<float>(ops.layout_.guess_weights);
  const std::byte* const* norm = vector(next->norm);
  gpu::MatmulCall router;
  router.cols = dim;
  router.x_rows = count;
  router.x = normed;
  router.x_stride = dim;
  router.products[router.count++] = {matrix(next->router), vector(next->experts.router_bias), scores,
                                     next->experts.count};
  if (!status.ok()) return nullptr;
  check(gpu::rms_norm(data(next->state), nullptr, norm, count, dim, next->eps, normed, {}, stream), "rms_norm");
  launch(router);
  route(next->experts, scores, chosen, weights);
  gpu::HandOutExpertsCall call;
  call.from = weights;
  call.count = window.rows * next->experts.top_k;
  call.chosen = chosen;
  call.entries = static_cast<std::int32_t>(call.count);
  call.to = share.device_guess_weights();
  call.to_chosen = share.device_guess();
  call.flag = share.device_guess_flag();
  call.number = number;
  call.arrived = share.arrived();
  check(gpu::hand_out_experts(call, stream), "hand out");
  return &next->experts;
}

void GpuExecutor::Emitter::claim_experts(const Experts& experts, gpu::ExpertCall& hidden, gpu::ExpertCall& down) {
  const residency::DeviceExperts& flow = *ops.options_.experts.slots;
  const residency::ExpertSlots& here = flow.gpu(ops.options_.experts.gpu);
  const std::int32_t rows = hidden.entries / experts.top_k;
  const int permille = flow.link().of(rows);
  if (permille == 0) return;
  gpu::ClaimExpertsCall call;
  call.chosen = hidden.chosen;
  call.entries = hidden.entries;
  call.experts = experts.count;
  call.parts = flow.parts_of_expert();
  call.here = ops.weights_.entry({experts.first_unit, 0});
  call.absent = here.absent();
  call.in_ram = here.in_ram(experts.first_unit);
  call.permille = permille;
  call.table = here.claimed();
  check(gpu::claim_experts(call, stream), "claim");
  hidden.weight = call.table + experts.first_part();
  hidden.up = call.table + experts.up_part;
  down.weight = call.table + experts.down_part;
}

std::int64_t GpuExecutor::Emitter::first_of_result(const Step& s) const {
  if (s.experts.own_hidden.buffer < 0) return 0;
  const Step* gather = &s;
  while (gather->kind != Kind::gather || gather->a != s.out) ++gather;  // the decoder records one
  return gather->first;
}

void GpuExecutor::Emitter::take_in_experts(const Step& s, std::uint32_t number, const Experts* ahead) {
  if (!status.ok()) return;
  ExpertShare& share = ops.computing_share();
  gpu::TakeInExpertsCall call;
  call.place = share.device_places();
  call.from = share.device_output() + first_of_result(s);
  call.from_stride = cols(s.a);
  call.to = ops.at<float>(ops.layout_.expert_out);
  call.entries = static_cast<std::int32_t>(window.rows * s.experts.top_k);
  call.cols = static_cast<std::int32_t>(cols(s.out));
  call.flag = share.device_output_flag();
  call.number = number;
  call.seen = ops.follows_experts() ? reinterpret_cast<std::uint32_t*>(ops.followed_seen_.data()) : share.seen();
  check(gpu::take_in_experts(call, stream), "take in");
  if (ops.follows_experts()) return;
  const ExpertBiases& biases = ops.expert_biases_.at(s.experts.first_unit);
  const auto bias = [](const std::vector<float>& all) { return all.empty() ? nullptr : all.data(); };
  if (status.ok())
    share.add({number, window.rows, &s.experts, bias(biases.gate), bias(biases.up), bias(biases.down),
               bias(biases.inner_scale), bias(biases.up_scale), bias(biases.down_scale), ahead},
              stream);
}

void GpuExecutor::Emitter::activate(const gpu::ExpertCall& hidden, const gpu::ExpertCall& down, bool of_wave) {
  if (!status.ok()) return;
  gpu::ActivateEntriesCall call;
  call.activation = hidden.activation;
  call.x = hidden.y;
  if (hidden.rows == down.cols) call.q8 = down.x_q8;  // else one GPU's rows, to be gathered
  call.entries = hidden.entries;
  call.cols = hidden.rows;
  if (of_wave) {
    call.sorted = hidden.sorted;
    call.expert_first = hidden.expert_first;
    call.experts = hidden.experts;
  }
  check(gpu::activate_entries(call, stream), "activate");
}

void GpuExecutor::Emitter::launch_waves(const Step& s, gpu::ExpertCall hidden, gpu::ExpertCall down) {
  const Experts& experts = s.experts;
  residency::DeviceExperts& flow = *ops.options_.experts.slots;
  const std::size_t gpu = ops.options_.experts.gpu;
  const std::int32_t* const expert_first = hidden.expert_first;
  do {
    if (!status.ok()) return;
    const auto wave = flow.acquire(gpu, stream, ops.cancelled_);
    if (!wave.ok()) {
      status = wave.status();
      return;
    }
    for (gpu::ExpertCall* const call : {&hidden, &down}) {
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
    check(gpu::matmul_experts(hidden, stream), "matmul_experts");
    if (!experts.gated()) activate(hidden, down, true);
    gather_hidden(s, down, true);
    if (status.ok()) check(gpu::matmul_experts(down, stream), "matmul_experts");
    if (status.ok()) status = flow.let_go(gpu, stream, ops.cancelled_);
  } while (!flow.layer_ended(gpu));
}

void GpuExecutor::Emitter::emit_router(const Step& s, const Step* gate) {
  auto* const scores = ops.at<float>(ops.layout_.scores);
  gpu::MatmulCall router = call_for(s.b, ops.part(s.weight).dtype, false);
  router.products[router.count++] = {matrix(s.weight), vector(s.experts.router_bias), scores, s.experts.count};
  if (gate != nullptr) {
    const Product& made = gate->products[0];
    router.products[router.count++] = {matrix(made.weight), vector(made.bias), data(made.out), cols(made.out)};
    overwritten(made.out);
  }
  launch(router);
  route(s.experts, scores, ops.at<std::int32_t>(ops.layout_.chosen), ops.at<float>(ops.layout_.weights));
}

void GpuExecutor::Emitter::emit_shared_expert(const Launch& l) {
  const std::size_t down = l.first + 1;
  const bool floats = is_float(ops.part(step(down).products[0].weight).dtype);
  emit_gated({Launch::Kind::gated, false, {floats, !floats, false}, l.first, down, step(l.first).out});
  emit_product({Launch::Kind::product, false, {}, down, down + 1, step(down).products[0].out});
}

void GpuExecutor::Emitter::combine(const Launch& l, const Step& s, const float* expert_out, bool joined) {
  overwritten(l.out);
  gpu::CombineCall call;
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
  check(gpu::combine(call, stream), "combine_experts");
}

void GpuExecutor::Emitter::make_expert_calls(const Step& s, const Launch* joined, gpu::ExpertCall& hidden,
                                             gpu::ExpertCall& down) {
  const Experts& experts = s.experts;
  hidden = expert_call(experts, experts.first_part());
  const residency::Part& up = ops.part({experts.first_unit, experts.up_part});
  const residency::Part& down_part = ops.part({experts.first_unit, experts.down_part});
  hidden.effect = experts.gated() ? gpu::Effect::gated : gpu::Effect::store;
  hidden.activation = experts.activation;
  hidden.limit = experts.limit;
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
    down.x_q8 = hidden.y_q8 = gpu::q8_at(ops.at(ops.layout_.hidden), hidden.entries, hidden.rows);
  } else {
    hidden.y = ops.at<float>(ops.layout_.hidden);
    down.x_q8 = gpu::q8_at(ops.at(ops.layout_.hidden_q8), hidden.entries, hidden.rows);
  }
  if (experts.own_hidden.buffer >= 0) {  // and the others' come from them
    hidden.y = data(experts.own_hidden);
    hidden.y_q8 = {};
    if (down.x_q8.q != nullptr) down.x_q8 = gpu::q8_at(ops.at(ops.layout_.hidden), down.entries, down.cols);
  }
  down.y = ops.at<float>(ops.layout_.expert_out);
}

void GpuExecutor::Emitter::gather_hidden(const Step& s, const gpu::ExpertCall& down, bool of_wave) {
  if (s.experts.own_hidden.buffer < 0 || !status.ok()) return;
  gpu::GatherCall call = gather_call(s, s.experts.own_hidden);
  call.rows = down.entries;
  call.cols = down.cols;
  if (of_wave) {
    call.some = down.sorted;
    call.begin = down.expert_first;
    call.end = down.expert_first + down.experts;
  }
  for (int d = 0; d < call.devices; ++d) {
    const Peers::Device& peer = ops.peers_.devices[static_cast<std::size_t>(d)];
    gpu::GatherCall::Target& target = call.targets[d];
    target.own_cols /= s.experts.top_k;
    if (down.x != nullptr)
      target.out = peer.floats_at(peer.layout.hidden);
    else
      target.q8 = gpu::q8_at(peer.at(peer.layout.hidden), call.rows, call.cols);
  }
  check(gpu::gather(call, stream), "gather");
}

void GpuExecutor::Emitter::emit_moe(const Launch& l) {
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
    check(gpu::sort_entries(chosen, static_cast<std::int32_t>(entries), experts.count,
                            ops.at<std::int32_t>(ops.layout_.sorted), ops.at<std::int32_t>(ops.layout_.expert_first),
                            stream),
          "sort_entries");
  }
  gpu::ExpertCall hidden, down;
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

}  // namespace millrace::exec

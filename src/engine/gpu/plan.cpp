#include "engine/gpu/plan.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "device/device.h"
#include "device/gpu.h"
#include "engine/gpu/kv_layout.h"
#include "engine/machine_rates.h"
#include "engine/prompt_parts.h"
#include "engine/self_drafter.h"
#include "engine/step_cost.h"
#include "engine/within.h"
#include "exec/gpu/self_test.h"
#include "kernels/gpu/offer.h"
#include "residency/budget.h"
#include "residency/calibrate.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kAutomaticBatch = 2048, kLeastBatch = 64, kLeastGpuContext = 512, kAutomaticChunk = 512;
constexpr std::int64_t kMostLogitRows = 64;  // beyond one a sequence; a prompt's chunk at least
// Where layers stream, a pass takes a whole prompt (engine/prompt_parts.h).
constexpr std::int64_t kStreamingBatch = 16384;
constexpr std::uint64_t kPartsOfVram = 32;  // larger parts of prompts may take one of so many
// What the driver takes after its context was measured: kernels loaded when first launched, graphs, fragmentation.
constexpr std::uint64_t kDriverMargin = 160 * kMiB;
constexpr std::uint64_t kUsualContextBytes = 600 * kMiB;  // where the driver does not tell
// Of --ram: what the engine takes beside page-locked weights, after the program (the driver's part of it, too) was
// measured; and by how much the next run's measurement may differ, so that a plan can be followed.
constexpr std::uint64_t kHostMargin = 64 * kMiB, kMeasurementSpread = 32 * kMiB;
constexpr std::uint64_t kThreadBytes = kMiB;  // of each that computes the CPU's share
constexpr int kUsualMultiprocessors = 100;    // of a GPU that is not here

}  // namespace

Expected<device::Gpu> find_gpu(int index) {
  MR_ASSIGN_OR_RETURN(const std::vector<device::Gpu> found, device::gpus());
  if (index < 0 || index >= static_cast<int>(found.size()))
    return error(Code::unsupported, "--device {}:{}: there are {} GPUs here, counted from 0", device::gpu_kind(), index,
                 found.size());
  return found[static_cast<std::size_t>(index)];
}

Expected<Vram> open_gpu(int index) {
  const auto before = device::vram_state_without_context(index);
  MR_RETURN_IF_ERROR(device::use_gpu(index));
  MR_ASSIGN_OR_RETURN(const device::VramState after, device::vram_state());
  Vram vram;
  vram.free_bytes = after.free_bytes;
  vram.context_bytes =
      before.ok() && before->free_bytes > after.free_bytes ? before->free_bytes - after.free_bytes : kUsualContextBytes;
  vram.context_bytes += kDriverMargin;
  MR_ASSIGN_OR_RETURN(const device::Gpu gpu, device::gpu(index));
  vram.multiprocessors = gpu.multiprocessors;
  return vram;
}

Status try_kernels(const model::Model& model, const EngineOptions& options, const device::Gpu& gpu) {
  if (device::gpu_kind() != "cuda") return {};
  exec::SelfTestOf of = exec::self_test_of(model.program(), model.units(), options.kv.dtype);
  of.pictures = !options.model.mmproj.empty();
  const Expected<std::vector<std::string>> replaced = exec::self_test(of, gpu);
  if (replaced.status().code() == Code::out_of_budget) {  // the model may run in what is left
    log::info("GPU {} ({}) has no room for its self-test: {}", gpu.index, gpu.name, replaced.status().message());
    return {};
  }
  MR_RETURN_IF_ERROR(replaced.status());
  for (const std::string& what : *replaced)
    log::warn("GPU {} ({}) {}. Please report it, with what `millrace doctor` says", gpu.index, gpu.name, what);
  return {};
}

Vram vram_on_paper(std::uint64_t bytes, int processors) {
  return {bytes, kUsualContextBytes + kDriverMargin, kUsualMultiprocessors, processors};
}

std::uint64_t most_cap(const Vram& vram) { return vram.free_bytes + vram.context_bytes - kDriverMargin; }

GpuPlanner::GpuPlanner(const EngineOptions& options, const Vram& vram, Parts& parts)
    : options_(options),
      demand_(options),
      vram_(vram),
      parts_(parts),
      layout_(layout_on_gpu(*parts.model, options, options.device.gpu)),
      all_ram_(ram_of(options)),
      program_bytes_(measured_program_bytes(options, all_ram_, parts)),
      ram_(ram_of_one()),
      rates_(parts.rates) {
  share_processor();
  const int threads = options.device.cpu_threads();
  threads_bytes_ = static_cast<std::uint64_t>(threads) * kThreadBytes;
  const std::uint64_t most = most_cap(vram_);
  std::uint64_t asked = options_.memory.vram_bytes;
  for (const std::uint64_t beside : options_.memory.vram_beside) asked = std::min(asked, beside);
  if (asked > most) log::warn("--vram {}: only {} of this GPU are free now", format_bytes(asked), format_bytes(most));
  cap_ = asked > 0 ? std::min(asked, most) : most;
}

/// Of several GPUs each has its part of what the program and the words between them leave.
std::uint64_t GpuPlanner::ram_of_one() const {
  const std::uint64_t program = std::min(all_ram_, program_bytes_),
                      words = std::min(all_ram_ - program, vram_.words_bytes);
  return program + (all_ram_ - program - words) / vram_.gpus;
}

/// Beside each of several GPUs computes its part of the threads.
void GpuPlanner::share_processor() {
  residency::Rates& rates = parts_.rates;
  rates = rates_;
  for (double* const rate :
       {&rates.ram, &rates.cpu_decode, &rates.cpu_decode_busy, &rates.cpu_prefill_macs, &rates.cpu_few_macs})
    *rate /= static_cast<double>(vram_.gpus);
}

Status GpuPlanner::plan(const TakenMemory& others) {
  if (!kernels::gpu::offer().host_rows && options_.memory.cpu_share_percent > 0)
    return error(Code::unsupported, "{} shares no rows with the processor; leave --cpu-share out",
                 kernels::gpu::offer().name);
  others_ = others;
  front_wanted_ = front_of(options_, parts_);
  if (front_wanted_ != 0 && plan_once().ok() && parts_.plan.front_layers != 0) return {};
  front_wanted_ = 0;
  return plan_once();
}

/// The first layers that guess: as many as were asked for, or all that lie in VRAM where others do not.
int GpuPlanner::front_layers() const {
  if (front_wanted_ == 0) return 0;
  const int leading = residency::leading_layers(units(), homes_.placement.homes);
  if (front_wanted_ > 0) return leading >= front_wanted_ ? front_wanted_ : 0;
  return leading < parts_.model->program().layer_count() ? leading : 0;
}

/// By unit: what a drafter computes with.
void GpuPlanner::set_front() {
  residency::Plan& plan = parts_.plan;
  plan.front.clear();
  if (plan.front_layers == 0) return;
  for (const residency::Unit& unit : units().units())
    plan.front.push_back(residency::in_front(unit, plan.front_layers));
}

/// What a drafter within the model takes beside what it computes with.
TakenMemory GpuPlanner::taken_by_drafter() const {
  if (front_wanted_ == 0) return {};
  const exec::PassLimits limits = self_draft_limits(parts_.limits);
  return {kGraphBytes + exec::gpu_activation_bytes(exec::gpu_pass_shape(parts_.model->program(), units(), limits)),
          self_draft_host_bytes(parts_.limits, hp())};
}

/// By all but weights, activations and KV.
TakenMemory GpuPlanner::taken() const {
  const TakenMemory drafter = taken_by_drafter();
  return {vram_.context_bytes + others_.vram_bytes + tower_.vram_bytes + drafter.vram_bytes + parts_.adapter_bytes,
          program_bytes_ + others_.ram_bytes + tower_.ram_bytes + drafter.ram_bytes + parts_.adapter_bytes};
}

Status GpuPlanner::plan_once() {
  demand_ = Demand(options_);
  chose_ = false;
  const bool shares = shares_out(demand_);
  if (shares || demand_.context_tokens == 0) share_memory();
  MR_RETURN_IF_ERROR(fit_sequences(shares, demand_, [this] { return place(); }));
  // Which experts the processor computes with goes by rates.
  if (measure()) MR_RETURN_IF_ERROR(fit_sequences(shares, demand_, [this] { return place(); }));
  set_plan_options();
  parts_.plan = residency::plan_homes(units(), homes_, parts_.plan_options, parts_.rates);
  parts_.plan.vram_fixed_bytes = vram_.context_bytes + activation_bytes() + parts_.adapter_bytes;
  parts_.plan.vram_tower_bytes = tower_.vram_bytes;
  parts_.plan.vram_draft_bytes = others_.vram_bytes + taken_by_drafter().vram_bytes;
  parts_.plan.front_layers = front_layers();
  set_front();
  set_spare();
  return {};
}

/// Of VRAM that KV will need once sequences grow.
void GpuPlanner::set_spare() {
  residency::ExpertTiers& experts = homes_.experts;
  std::uint64_t bytes = 0, margin = 0;
  for (const kv::Group& group : layout_.groups()) {
    const exec::DeviceBlocksShape shape = blocks_shape(group);
    bytes += static_cast<std::uint64_t>(shape.most - shape.first) * shape.block_bytes;
    margin += 2 * shape.chunk_bytes();
  }
  homes_.placement.use_spare = uses_spare() && !experts.any();
  homes_.placement.spare_margin = experts.spare_margin = margin;
  if (!uses_spare() || !experts.any()) return;
  const auto slots = static_cast<std::int64_t>(bytes / residency::device_slot_bytes(units()));
  experts.spare_slots = static_cast<int>(std::min(slots, units().experts() - experts.vram_slots));
}

/// Blocks that are taken at once where others may use the memory of the rest for now.
static std::int64_t first_blocks(std::int64_t most) { return std::max<std::int64_t>(1, most / 4); }

exec::DeviceBlocksShape GpuPlanner::blocks_shape(const kv::Group& group) const {
  const std::int64_t most = blocks(group);
  return {uses_spare() ? first_blocks(most) : most, most, static_cast<std::uint64_t>(group.block_bytes())};
}

std::uint64_t GpuPlanner::most_kv_bytes() const {
  const bool unknown = units().experts() > 0 && (chose_ || options_.planning.follow != nullptr);
  std::uint64_t bytes = 0;
  for (const kv::Group& group : layout_.groups()) {
    exec::DeviceBlocksShape shape = blocks_shape(group);
    std::uint64_t most = shape.most_bytes();
    for (const std::int64_t first : {shape.most, first_blocks(shape.most)}) {
      shape.first = first;
      if (unknown) most = std::max(most, shape.most_bytes());
    }
    bytes += most;
  }
  return bytes;
}

/// How long contexts are, and how many requests share passes, where nobody said.
void GpuPlanner::share_memory() {
  homes_ = residency::homes_in_vram(units());
  choose_limits(false);
  const SharedMemory memory{
      .cap_bytes = cap_,
      .taken_bytes =
          taken().vram_bytes + residency::device_weight_bytes(units(), homes_.placement) + activation_bytes(),
      .weights_give_way = units().experts() == 0,
      .kv_bytes = [this](std::int64_t tokens, std::int64_t sequences) {
        return kv::most_bytes(layout_, {tokens, sequences, parts_.limits.batch_tokens * parts_.limits.passes});
      }};
  share_out(hp(), memory, demand_);
}

/// The model in VRAM as a whole, or as much of it as fits.
Status GpuPlanner::place() {
  chose_ = false;
  if (options_.planning.follow != nullptr) return follow();
  // Of a mixture: told to keep experts outside VRAM, wherever they would fit.
  const bool flows = hp().experts > 0 && (options_.experts.vram_slots >= 0 || options_.experts.ram_slots > 0);
  if (!options_.memory.pins.empty() || flows) return choose();
  choose_limits(false);
  homes_ = residency::homes_in_vram(units());
  homes_.placement.straight = options_.storage.cufile;
  const Status whole = fit_limits(demand_, rules(), parts_.limits, [this] {
    if (residency::vram_bytes(units(), homes_, homes_input()) <= cap_) return Status();
    return error(Code::out_of_budget, "the model has no room in {} of VRAM as a whole", format_bytes(cap_));
  });
  return whole.ok() ? whole : choose();
}

/// As many layers, or experts, as fit at home in VRAM, the others in RAM while there is room, the rest on the disk.
Status GpuPlanner::choose() {
  chose_ = true;
  choose_limits(units().experts() == 0);
  return fit_limits(demand_, rules(), parts_.limits, [this]() -> Status {
    MR_ASSIGN_OR_RETURN(homes_, residency::choose_homes(units(), homes_input(), parts_.rates));
    return {};
  });
}

void GpuPlanner::say_homes() const {
  if (!chose_) return;
  if (homes_.experts.any())
    log::info("{} of {} experts have slots in VRAM, {} are in RAM; the CPU computes those that are not in VRAM",
              homes_.experts.vram_slots, units().experts(), homes_.experts.ram_slots);
  else
    log::info("{} of {} layers stream to the GPU in every pass, {} of them from the disk", homes_.movers, hp().layers,
              homes_.on_disk);
}

/// The homes of a saved plan, if they fit today.
Status GpuPlanner::follow() {
  const std::vector<residency::Tier>& tiers = options_.planning.follow->homes;
  if (tiers.size() != units().units().size())
    return error(Code::invalid_argument, "the plan is for the CPU; add --device cpu, or make a new plan");
  if (residency::experts_flow(units(), tiers)) return choose();
  choose_limits(residency::layers_move(units(), tiers));
  MR_ASSIGN_OR_RETURN(
      homes_, residency::follow_homes(units(), tiers, options_.planning.follow->decisions.ring_slots, homes_input()));
  return {};
}

/// Beyond one a sequence.
std::int64_t GpuPlanner::wanted_logit_rows() const {
  const auto row_bytes = static_cast<std::uint64_t>(hp().vocab) * sizeof(float);
  const auto affordable = static_cast<std::int64_t>(cap_ / kPartsOfVram / row_bytes);
  return std::max(kMostLogitRows, std::min(demand_.logit_rows, affordable));
}

void GpuPlanner::choose_limits(bool streams) {
  streams_ = streams;
  Limits& limits = parts_.limits;
  limits.sequences = std::max<std::int64_t>(1, demand_.max_sequences);
  limits.context_tokens = wanted_context(demand_, hp());
  const std::int64_t automatic =
      streams ? std::max(kAutomaticBatch, std::min(limits.context_tokens, kStreamingBatch)) : kAutomaticBatch;
  set_rows(demand_, rules(), demand_.batch_tokens > 0 ? demand_.batch_tokens : automatic, limits);
  limits.logit_rows = std::max(limits.sequences, std::min(limits.batch_tokens, wanted_logit_rows()));
  limits.tile_bytes = kGpuTileBytes;
  limits.work_tokens = streams ? part_of_prompts() : 0;
}

std::int64_t GpuPlanner::part_of_prompts() {
  std::int64_t& work = parts_.limits.work_tokens;
  const std::vector<ProductShape> products = dense_products(parts_.model->program(), units());
  return std::min(parts_.limits.batch_tokens,
                  choose_part(products, vram_.multiprocessors, cap_ / kPartsOfVram, [&](std::int64_t rows) {
                    work = std::min(parts_.limits.batch_tokens, rows);
                    return activation_bytes();
                  }));
}

LimitRules GpuPlanner::rules() const {
  return {.least_batch = kLeastBatch,
          .least_context = kLeastGpuContext,
          .chunk_tokens = kAutomaticChunk,
          .prompt_chunk = exec::gpu_prompt_chunk(parts_.model->program())};
}

residency::HomesInput GpuPlanner::homes_input() const {
  const kernels::Table& kernels = kernels::table(options_.device.cpu_isa());
  const exec::PassShape shape = pass_shape();
  residency::HomesInput input;
  input.vram_bytes = cap_;
  input.ram_bytes = ram_;
  const TakenMemory others = taken();
  input.vram_taken_bytes = others.vram_bytes + exec::gpu_activation_bytes(shape) + most_kv_bytes();
  input.ram_taken_bytes = others.ram_bytes + residency::kLoadingBytes + kHostMargin + threads_bytes_;
  input.front_layers = front_wanted_;
  if (units().experts() > 0)
    input.ram_beside_experts_bytes = exec::expert_share_bytes(
        shape, kernels, residency::threads_beside_gpu(options_.device.threads, vram_.processors));
  input.ram_spread_bytes = kMeasurementSpread;
  input.context_tokens = parts_.limits.context_tokens;
  input.parted_prompts = parts_.limits.batch_tokens > parts_.limits.work_tokens;
  input.straight = options_.storage.cufile;
  input.pins = options_.memory.pins;
  input.most_vram_experts = options_.experts.vram_slots;
  input.most_ram_experts = options_.experts.ram_slots;
  input.policy = options_.experts.policy;
  input.cpu_share_percent = kernels::gpu::offer().host_rows ? options_.memory.cpu_share_percent : 0;
  return input;
}

exec::PassShape GpuPlanner::pass_shape() const {
  return exec::gpu_pass_shape(parts_.model->program(), units(), pass_limits(parts_.limits));
}

void GpuPlanner::set_plan_options() {
  residency::PlanOptions& plan_options = parts_.plan_options;
  plan_options.vram_bytes = cap_;
  plan_options.kv_bytes = plan_options.most_kv_bytes = kv::most_bytes(layout_, kv_load(parts_.limits));
  plan_options.context_tokens = parts_.limits.kv_tokens;
  plan_options.passes = pass_demand(*parts_.model, layout_);
  plan_options.passes.tokens = parts_.limits.batch_tokens;
  plan_options.experts.routing = routing_guess(options_, parts_.routing.get());
  const int processors = vram_.processors > 0 ? vram_.processors : ThreadPool::usable_processors();
  plan_options.passes.crowded = residency::threads_beside_gpu(options_.device.threads, processors) >= processors;
  plan_options.passes.decode_rows = demand_.decode_rows * static_cast<double>(1 + others_.guesses);
  plan_options.passes.quantized_kv = info(options_.kv.dtype).block_elements > 1;
  plan_options.cpu_permille.reset();
  if (!kernels::gpu::offer().host_rows)
    plan_options.cpu_permille = 0;
  else if (options_.planning.follow != nullptr)
    plan_options.cpu_permille = options_.planning.follow->decisions.cpu_permille;
  else if (options_.memory.cpu_share_percent >= 0)
    plan_options.cpu_permille = options_.memory.cpu_share_percent * 10;
  else if (parts_.rates.brief && streams_from_ram())
    plan_options.cpu_permille = rounded_share();
}

/// What a choice depends on: layers or experts lie outside VRAM. Of several GPUs the first one's rates are every one's.
/// True: there are more rates than before.
bool GpuPlanner::measure() {
  if (!chose_ || measured_) return false;
  measured_ = true;  // or cannot be: that is asked once
  const MeasuringRoom room{.host_bytes = all_ram_ - std::min(all_ram_, program_bytes_),
                           .device_bytes = cap_ - std::min(cap_, vram_.context_bytes),
                           .gpu = true};
  parts_.rates = rates_;
  const bool more = measure_rates(options_, room, parts_);
  rates_ = std::move(parts_.rates);
  share_processor();
  return more;
}

/// Rates measured briefly differ a little from run to run: the share is chosen in large steps, so that most runs have
/// the same one.
int GpuPlanner::rounded_share() const {
  constexpr int kShareStep = 50;
  const int exact =
      residency::make_vram_plan(units(), homes_.placement.homes, parts_.plan_options, parts_.rates).cpu_permille;
  return (exact + kShareStep / 2) / kShareStep * kShareStep;
}

}  // namespace millrace::engine

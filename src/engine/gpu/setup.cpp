// The parts of a run on one GPU, made to its plan (plan.h). A model that fits is at home in the GPU's memory as a
// whole; of a larger dense one as many layers as fit, and the others stream from RAM and, where that is too small, from
// the disk.
#include "engine/setup.h"

#include <chrono>

#include "base/bytes.h"
#include "base/log.h"
#include "device/gpu.h"
#include "engine/adapter_mix.h"
#include "engine/gpu/draft.h"
#include "engine/gpu/plan.h"
#include "engine/gpu/shards.h"
#include "engine/gpu/tower.h"
#include "engine/machine_rates.h"
#include "engine/pack_choice.h"
#include "engine/usage_keeper.h"
#include "engine/within.h"
#include "exec/gpu/executor.h"
#include "residency/calibrate.h"
#include "residency/gpu/experts.h"
#include "residency/gpu/weights.h"
#include "storage/cufile.h"

namespace millrace::engine {
namespace {

struct LoadedWeights final : GpuParts {
  exec::GpuOptions aside;
  residency::Reservation graphs;  // of the executor aside
  std::unique_ptr<residency::DeviceWeights> weights;
  std::unique_ptr<residency::DeviceExperts> experts;  // null: all are in VRAM
  void add_to(residency::StoreCounters& counters) const override {
    weights->add_to(counters);
    if (experts != nullptr) experts->add_to(counters);
  }
  residency::ExpertUsage expert_usage() const override {
    return experts != nullptr ? experts->usage() : residency::ExpertUsage();
  }
  Expected<std::unique_ptr<exec::Executor>> executor_aside(const Parts& target) override {
    MR_ASSIGN_OR_RETURN(graphs, target.vram->reserve("graphs for guesses", kGraphBytes));
    return exec::make_gpu_executor(target.model->units(), *weights, *target.vram, aside);
  }
};

// About what a fast disk reads while a driver starts.
constexpr std::uint64_t kHeadStartBytes = 1536 * kMiB;

/// Reads the first weights while the driver starts, where RAM has room for all of the model beside them: whatever the
/// plan will be, it fits then.
void begin_reading(const EngineOptions& options, Parts& parts) {
  const residency::UnitTable& units = parts.model->units();
  if (options.storage.cufile || !options.storage.faults.empty() ||
      units.total_bytes() + kHeadStartBytes > options.memory.ram_bytes)
    return;
  auto begun = residency::HeadStart::begin(units, *parts.backend, kHeadStartBytes);
  if (begun.ok()) parts.head_start = std::move(*begun);
  if (!begun.ok()) log::info("weights are read once the GPU's driver has started: {}", begun.status().message());
}

}  // namespace

Expected<Parts> assemble_gpu(const EngineOptions& asked, const DraftModelPlan* draft, bool load,
                             const std::function<Status(const Parts&)>& accept) {
  if (!asked.device.gpus_beside.empty()) return assemble_shards(asked, draft != nullptr, load, accept);
  EngineOptions options = asked;  // of RAM, what there is before the driver has its part
  options.memory.ram_bytes = std::max<std::uint64_t>(1, ram_of(asked));
  options.memory.ram_taken_bytes = 0;
  if (!options.experts.record_routing.empty())
    return error(Code::unsupported, "--record-routing: the CPU writes down what routers choose; add --device cpu");
  Parts parts;
  std::vector<std::string> paths;
  MR_RETURN_IF_ERROR(open_model(options, kGpuTileBytes, false, parts, paths));
  if (wants_draft_block(options))
    parts.draft.words = "a GPU has no passes through that block yet; give --draft FILE, or --device cpu";
  MR_RETURN_IF_ERROR(start_storage(options, paths, false, parts));
  if (load) begin_reading(options, parts);
  MR_ASSIGN_OR_RETURN(const device::Gpu gpu, find_gpu(options.device.gpu));
  MR_RETURN_IF_ERROR(
      exec::check_gpu(parts.model->program(), parts.model->units(), {options.kv.dtype, gpu.block_shared_bytes}));
  if (!options.model.adapters.empty())
    MR_RETURN_IF_ERROR(exec::check_gpu_adapters(parts.model->program(), parts.model->units(), parts.adapted_weights,
                                                parts.adapts_embedding));
  MR_RETURN_IF_ERROR(check_kv(parts.model->program().layout, options.kv.dtype));
  MR_ASSIGN_OR_RETURN(const Vram vram, open_gpu(options.device.gpu));
  parts.rates = rates_beside(gpu.name, std::move(parts.rates));
  GpuPlanner planner(options, vram, parts);
  seat_tower(options, gpu, planner, parts);
  MR_RETURN_IF_ERROR(draft != nullptr ? seat_draft(options, *draft, gpu, planner, parts) : planner.plan());
  if (drafts_within(options) && parts.plan.front_layers != 0 && parts.plan.cpu_permille > 0) {
    const auto plan_for = [&](std::int64_t guesses) { return planner.plan({.guesses = guesses}); };
    const PlannedGuesses planned =
        plan_guesses(forecast_within(options, parts), draft_habits(options.speculate), [&](std::int64_t guesses) {
          return plan_for(guesses).ok() ? forecast_within(options, parts) : DraftForecast();
        });
    MR_RETURN_IF_ERROR(plan_for(planned.guesses));
  }
  if (drafts_within(options)) parts.draft = seat_within(options, parts);
  planner.say_homes();
  MR_RETURN_IF_ERROR(accept(parts));
  MR_RETURN_IF_ERROR(choose_pack(options, !planner.experts_leave_ram(), parts, paths));
  if (parts.pack != nullptr) {  // an expert takes a little less memory there
    MR_RETURN_IF_ERROR(planner.plan({parts.draft.vram_bytes, parts.draft.ram_bytes}));
    parts.head_start = nullptr;
    MR_RETURN_IF_ERROR(start_storage(options, paths, false, parts));
  }
  if (options.storage.cufile) {
    MR_ASSIGN_OR_RETURN(parts.straight, storage::open_cufile(paths, {.device = options.device.gpu}));
  }
  log::info("GPU {}: context {} tokens x {}, {} rows a pass, {} of VRAM at most", options.device.gpu,
            parts.limits.context_tokens, parts.limits.sequences, parts.limits.batch_tokens,
            format_bytes(planner.cap_bytes()));
  parts.budget = std::make_unique<residency::Budget>(
      std::max(planner.ram_bytes(), planner.program_bytes() + residency::kLoadingBytes));
  if (planner.program_bytes() > planner.ram_bytes())
    log::warn("--ram {}: the program and CUDA's driver alone take {} of RAM", format_bytes(planner.ram_bytes()),
              format_bytes(planner.program_bytes()));
  MR_ASSIGN_OR_RETURN(parts.program, parts.budget->reserve("program", planner.program_bytes()));
  if (parts.draft.place == DraftPlace::cpu) {
    MR_ASSIGN_OR_RETURN(parts.draft_model, parts.budget->reserve("draft model", parts.draft.ram_bytes));
  }
  parts.vram = std::make_unique<residency::Budget>(planner.cap_bytes(), "--vram");
  MR_ASSIGN_OR_RETURN(parts.gpu_context, parts.vram->reserve("CUDA context", vram.context_bytes));
  const bool cpu_shares = parts.plan.cpu_permille > 0;
  if (cpu_shares)
    log::info("the CPU computes {:.1f} % of the rows of {} layers streamed from RAM, the GPU the others",
              parts.plan.cpu_permille / 10.0, parts.plan.cost.shared_layers);
  if (!cpu_shares && !parts.plan_options.cpu_permille && !planner.knows_rates() && planner.streams_from_ram())
    log::info("the GPU computes layers streamed from RAM alone, for no rates are known: run `millrace calibrate`");
  if (!load) return parts;

  MR_RETURN_IF_ERROR(load_adapters(options, parts));
  exec::GpuOptions ops;
  ops.rows.adapters = parts.adapters.get();
  ops.device = options.device.gpu;
  ops.graphs = options.device.graphs;
  ops.fuse = options.device.fuse;
  ops.kv_dtype = options.kv.dtype;
  ops.rows.routing = parts.routing.get();
  ops.trace = options.watch.trace;
  ops.experts.prefetch = options.experts.prefetch;
  if (cpu_shares || planner.homes().experts.any()) {
    constexpr std::chrono::milliseconds kSpin{1};  // longer than the GPU takes for its own layers
    start_threads(options, residency::threads_beside_gpu(options.device.threads), kSpin, parts);
    ops.processor.pool = parts.pool.get();
    ops.processor.kernels = &kernels::table(parts.isa);
    ops.processor.ram = parts.budget.get();
  }
  auto loaded = std::make_unique<LoadedWeights>();
  loaded->aside.device = options.device.gpu;
  loaded->aside.graphs = options.device.graphs;
  loaded->aside.fuse = options.device.fuse;
  loaded->aside.kv_dtype = options.kv.dtype;
  loaded->aside.aside = true;
  auto weights = residency::DeviceWeights::load(
      parts.model->units(), planner.homes().placement, *parts.backend, parts.straight.get(), *parts.vram, *parts.budget,
      {options.watch.on_load, options.watch.on_load_end}, std::move(parts.head_start));
  if (options.watch.on_load_end) options.watch.on_load_end();
  if (!weights.ok()) return weights.status();
  loaded->weights = std::move(*weights);
  if (planner.homes().experts.any()) {
    parts.usage = UsageKeeper::open(options, parts.model->units());
    const std::vector<float> expected = parts.usage != nullptr ? parts.usage->expected() : std::vector<float>();
    MR_ASSIGN_OR_RETURN(
        loaded->experts,
        residency::DeviceExperts::create(
            parts.model->units(), planner.homes().experts,
            {{options.device.gpu, parts.model->units(), loaded->weights->table(), *parts.vram}}, *parts.backend,
            *parts.budget, {options.watch.on_load, options.watch.on_load_end}, pack_check(parts), expected));
    ops.experts.slots = loaded->experts.get();
  }
  MR_ASSIGN_OR_RETURN(parts.executor,
                      exec::make_gpu_executor(parts.model->units(), *loaded->weights, *parts.vram, ops));
  parts.gpu = std::move(loaded);
  MR_RETURN_IF_ERROR(parts.executor->prepare(parts.model->program(), pass_limits(parts.limits)));
  std::vector<std::unique_ptr<kv::BlockMemory>> blocks;
  for (const kv::Group& group : planner.layout().groups()) {
    MR_ASSIGN_OR_RETURN(blocks.emplace_back(),
                        exec::DeviceBlocks::create(planner.blocks_shape(group), {{options.device.gpu, *parts.vram}}));
  }
  parts.kv_pool = std::make_shared<kv::BlockPool>(planner.layout(), std::move(blocks));
  finish_kv(options, parts);
  if (parts.tower_seat.rows > 0) {
    MR_ASSIGN_OR_RETURN(parts.tower, load_tower_on_gpu(options, parts));
  } else if (!options.model.mmproj.empty()) {
    log::info("pictures are computed on the CPU: {}", parts.tower_seat.words);
  }
  log::info("executor: {}; storage: {}", parts.executor->describe(),
            parts.straight != nullptr ? parts.straight->traits().name : parts.backend->traits().name);
  return parts;
}

}  // namespace millrace::engine

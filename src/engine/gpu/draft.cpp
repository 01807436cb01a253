#include "engine/gpu/draft.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "engine/gpu/kv_layout.h"
#include "engine/host_draft.h"
#include "engine/setup.h"
#include "engine/step_cost.h"
#include "engine/within.h"
#include "exec/gpu/executor.h"
#include "modelfile/gguf.h"
#include "residency/gpu/weights.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kPromptRows = 512;  // of a pass that reads a prompt
// Of RAM: the model's description, angles, page-locked rows.
constexpr std::uint64_t kHostBytes = 24 * kMiB;

struct DraftWeights final : GpuParts {
  std::unique_ptr<residency::DeviceWeights> weights;
  void add_to(residency::StoreCounters& /*counters*/) const override {}  // nothing moves
};

/// The model, its file and its shape: what both the plan and the run begin with.
struct Opened {
  Parts parts;
  std::vector<std::string> paths;
  residency::DevicePlacement placement;
  kv::Layout layout;

  exec::DeviceBlocksShape blocks(const kv::Group& group) const {
    const std::int64_t most = kv::most_blocks(group, kv_load(parts.limits));
    return {most, most, static_cast<std::uint64_t>(group.block_bytes())};
  }
  /// Of RAM, with the page-locked logits.
  std::uint64_t host_bytes() const {
    return kHostBytes +
           static_cast<std::uint64_t>(parts.limits.logit_rows * parts.model->hyperparameters().vocab) * sizeof(float);
  }
};

Expected<Opened> open_draft(const EngineOptions& options, const device::Gpu& gpu) {
  Opened opened;
  Parts& parts = opened.parts;
  {
    modelfile::OpenOptions no_words;
    no_words.skip_vocabulary = true;
    MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(options.model.path, no_words));
    MR_ASSIGN_OR_RETURN(parts.model, model::load(file, {kGpuTileBytes, options.demand.context_tokens}));
    opened.paths = file.paths();
  }
  MR_RETURN_IF_ERROR(
      exec::check_gpu(parts.model->program(), parts.model->units(), {options.kv.dtype, gpu.block_shared_bytes}));
  MR_RETURN_IF_ERROR(try_kernels(*parts.model, options, gpu));
  opened.layout = layout_on_gpu(*parts.model, options, gpu.index);
  MR_RETURN_IF_ERROR(check_kv(opened.layout, options.kv.dtype));
  opened.placement = residency::homes_in_vram(parts.model->units()).placement;
  Limits& limits = parts.limits;
  limits.sequences = options.demand.max_sequences;
  limits.context_tokens = options.demand.context_tokens;
  set_rows(Demand(options), {}, std::max(kPromptRows, limits.sequences), limits);
  limits.logit_rows = limits.sequences;
  limits.tile_bytes = kGpuTileBytes;
  return opened;
}

/// The large model's plan beside a draft model that takes so much, and where the processor has a part in it, for passes
/// of as many rows as guesses make; those go to `taken`. `without`: the limits without a draft model.
DraftWay try_way(TakenMemory& taken, double guess_seconds, const DraftHabits& habits, const Limits& without,
                 GpuPlanner& planner, Parts& parts) {
  DraftWay way;
  if (const Status status = planner.plan(taken); !status.ok())
    way.refusal = status.message();
  else if (parts.limits.context_tokens < without.context_tokens)
    way.refusal =
        fmt::format("it would leave {} of {} tokens of context", parts.limits.context_tokens, without.context_tokens);
  else if (habits.drafts == 0 && parts.limits.sequences < without.sequences)  // nobody asked for guesses
    way.refusal = fmt::format("it would leave {} of {} requests at once", parts.limits.sequences, without.sequences);
  else
    way.forecast = forecast_drafts(parts.plan, parts.rates, guess_seconds, habits);
  if (way.forecast.drafts == 0 || parts.plan.cpu_permille == 0) return way;
  const PlannedGuesses planned = plan_guesses(way.forecast, habits, [&](std::int64_t guesses) {
    const Status status = planner.plan({taken.vram_bytes, taken.ram_bytes, guesses});
    return status.ok() ? forecast_drafts(parts.plan, parts.rates, guess_seconds, habits) : DraftForecast();
  });
  taken.guesses = planned.guesses;
  way.forecast = planned.forecast;
  return way;
}

/// Makes the plan of the best way, into the parts with the seat.
Status take_best(const DraftWays& ways, const std::array<TakenMemory, 3>& taken, const DraftHabits& habits,
                 GpuPlanner& planner, Parts& parts) {
  DraftSeat& seat = parts.draft;
  seat.place = choose_draft_place(ways, habits.drafts > 0);
  const TakenMemory& its = taken[static_cast<std::size_t>(seat.place)];
  MR_RETURN_IF_ERROR(planner.plan(its));
  seat.vram_bytes = its.vram_bytes;
  seat.ram_bytes = its.ram_bytes;
  seat.words = describe_seat(seat, ways, habits);
  return {};
}

}  // namespace

Expected<GpuDraftPlan> plan_gpu_draft(const DraftModelPlan& draft, const device::Gpu& gpu) {
  MR_ASSIGN_OR_RETURN(const Opened opened, open_draft(draft.wanted, gpu));
  const Parts& parts = opened.parts;
  const residency::UnitTable& units = parts.model->units();
  const exec::Program& program = parts.model->program();
  GpuDraftPlan plan;
  plan.limits = parts.limits;
  plan.taken.vram_bytes = residency::device_weight_bytes(units, opened.placement) +
                          exec::gpu_activation_bytes(exec::gpu_pass_shape(program, units, pass_limits(parts.limits))) +
                          kGraphBytes;
  for (const kv::Group& group : opened.layout.groups()) plan.taken.vram_bytes += opened.blocks(group).most_bytes();
  plan.taken.ram_bytes = residency::kLoadingBytes + opened.host_bytes();
  residency::PlanOptions options;
  options.passes = pass_demand(*parts.model, opened.layout);
  plan.plan = residency::make_vram_plan(units, opened.placement.homes, options, {});
  return plan;
}

Status seat_draft(const EngineOptions& options, const DraftModelPlan& draft, const device::Gpu& gpu,
                  GpuPlanner& planner, Parts& parts) {
  const DraftHabits habits = draft_habits(options.speculate);
  const auto on_gpu = plan_gpu_draft(draft, gpu);
  std::array<TakenMemory, 3> taken;  // by DraftPlace
  DraftWays ways;
  const auto index = [](DraftPlace place) { return static_cast<std::size_t>(place); };
  DraftWay &with_gpu = ways[index(DraftPlace::gpu)], &with_cpu = ways[index(DraftPlace::cpu)];

  MR_RETURN_IF_ERROR(planner.plan());
  const Limits without = parts.limits;
  ways[index(DraftPlace::none)].forecast = {parts.plan.predicted_decode_tokens_per_second, 0};
  if (on_gpu.ok()) {
    taken[index(DraftPlace::gpu)] = on_gpu->taken;
    with_gpu = try_way(taken[index(DraftPlace::gpu)], guess_seconds(on_gpu->plan, parts.rates), habits, without,
                       planner, parts);
  } else {
    with_gpu.refusal = on_gpu.status().message();
  }
  if (draft.on_cpu.ok()) {
    taken[index(DraftPlace::cpu)] = {0, draft.bytes, 0};
    with_cpu = try_way(taken[index(DraftPlace::cpu)], guess_seconds(draft.cpu_plan, parts.rates), habits, without,
                       planner, parts);
  } else {
    with_cpu.refusal = draft.on_cpu.message();
  }

  return take_best(ways, taken, habits, planner, parts);
}

Status seat_host_draft(const EngineOptions& options, GpuPlanner& planner, Parts& parts) {
  parts.draft.what = name_of(options.speculate.within);
  if (const Status able = check_within(options, parts); !able.ok()) {
    parts.draft.words = able.message();
    return {};
  }
  const DraftHabits habits = draft_habits(options.speculate);
  std::array<TakenMemory, 3> taken;
  DraftWays ways;
  ways[static_cast<std::size_t>(DraftPlace::none)].forecast = {parts.plan.predicted_decode_tokens_per_second, 0};
  ways[static_cast<std::size_t>(DraftPlace::gpu)].refusal = "this version computes it on the CPU";
  DraftWay& with_cpu = ways[static_cast<std::size_t>(DraftPlace::cpu)];
  const auto host = plan_host_draft(options, parts);
  if (host.ok()) {
    TakenMemory& its = taken[static_cast<std::size_t>(DraftPlace::cpu)] = {0, host->ram_bytes, 0};
    const Limits without = parts.limits;
    with_cpu = try_way(its, guess_seconds(host->guess, parts.rates), habits, without, planner, parts);
  } else {
    with_cpu.refusal = host.status().message();
  }
  return take_best(ways, taken, habits, planner, parts);
}

Expected<Parts> assemble_gpu_draft(const DraftModelPlan& draft, Parts& target) {
  const EngineOptions& options = draft.wanted;
  MR_ASSIGN_OR_RETURN(const device::Gpu gpu, find_gpu(options.device.gpu));
  MR_ASSIGN_OR_RETURN(Opened opened, open_draft(options, gpu));
  Parts& parts = opened.parts;
  MR_RETURN_IF_ERROR(start_storage(options, opened.paths, false, parts));
  // The target's budgets grant all of it; its own are none.
  MR_ASSIGN_OR_RETURN(parts.program, target.budget->reserve("draft model", opened.host_bytes()));
  MR_ASSIGN_OR_RETURN(parts.gpu_context, target.vram->reserve("draft model's graphs", kGraphBytes));
  auto loaded = std::make_unique<DraftWeights>();
  MR_ASSIGN_OR_RETURN(loaded->weights,
                      residency::DeviceWeights::load(parts.model->units(), opened.placement, *parts.backend, nullptr,
                                                     *target.vram, *target.budget, {}));
  exec::GpuOptions ops;
  ops.device = options.device.gpu;
  ops.kv_dtype = options.kv.dtype;
  MR_ASSIGN_OR_RETURN(parts.executor,
                      exec::make_gpu_executor(parts.model->units(), *loaded->weights, *target.vram, ops));
  parts.gpu = std::move(loaded);
  MR_RETURN_IF_ERROR(parts.executor->prepare(parts.model->program(), pass_limits(parts.limits)));
  std::vector<std::unique_ptr<kv::BlockMemory>> blocks;
  for (const kv::Group& group : opened.layout.groups()) {
    MR_ASSIGN_OR_RETURN(blocks.emplace_back(),
                        exec::DeviceBlocks::create(opened.blocks(group), {{options.device.gpu, *target.vram}}));
  }
  parts.kv_pool = std::make_shared<kv::BlockPool>(opened.layout, std::move(blocks));
  finish_kv(options, parts);
  return std::move(parts);
}

}  // namespace millrace::engine

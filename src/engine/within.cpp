#include "engine/within.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "device/host_memory.h"
#include "engine/model_drafter.h"
#include "engine/mtp_drafter.h"
#include "engine/self_drafter.h"
#include "engine/setup.h"
#include "engine/step_cost.h"

namespace millrace::engine {
namespace {

/// What a guess goes through.
exec::Program passes_of(const EngineOptions& options, const Parts& parts) {
  const exec::Program& program = parts.model->program();
  if (options.speculate.within == Within::self) return program.first_layers(parts.plan.front_layers);
  return *parts.model->draft_program();
}

/// Bytes of the units that stay at home for it.
std::uint64_t home_bytes(const Parts& parts) {
  std::uint64_t home = 0;
  const std::vector<residency::Unit>& units = parts.model->units().units();
  for (std::size_t u = 0; u < units.size(); ++u)
    if (parts.plan.front[u]) home += units[u].bytes();
  return home;
}

/// A pass of the drafter, as a plan's costs.
residency::Plan plan_of_guess(const EngineOptions& options, const Parts& parts) {
  const exec::Program& program = parts.model->program();
  const exec::Program passes = passes_of(options, parts);
  const double part = static_cast<double>(passes.layer_count()) / static_cast<double>(program.layer_count());
  residency::Plan plan;
  plan.predicted_hit_rate = 1;
  residency::PassCost& cost = plan.cost;
  cost = parts.plan.cost;
  cost.steps = step_cost(passes, passes.layout);
  cost.home = cost.read = cost.expert_bytes = cost.shared = cost.crossing = 0;
  cost.layers = passes.layer_count();
  cost.shared_layers = 0;
  cost.experts_in_vram = cost.experts_in_ram = 1;
  for (residency::AttentionCost& one : cost.attention) one.macs *= part, one.kv_bytes *= part;
  const std::vector<residency::Unit>& units = parts.model->units().units();
  for (std::size_t u = 0; u < units.size(); ++u)
    if (parts.plan.front[u])
      (units[u].kind == residency::UnitKind::expert ? cost.expert_bytes : cost.home) +=
          static_cast<double>(units[u].bytes());
  return plan;
}

bool on_gpu(const Parts& parts) { return parts.plan_options.vram_bytes > 0; }

/// What the plan left out, and what to do.
std::string no_front(const EngineOptions& options, const Parts& parts) {
  const int asked = options.speculate.self_layers;
  const char *const where = on_gpu(parts) ? "VRAM" : "memory", *const flag = on_gpu(parts) ? "--vram" : "--ram";
  if (asked == 0)
    return fmt::format(
        "no first layer stays in {} while others stream: all do, or the budget is too small; self:K "
        "insists",
        where);
  return fmt::format("the budget cannot keep the first {} layer{} and the head in {}; give fewer, or more {}", asked,
                     asked == 1 ? "" : "s", where, flag);
}

std::string home_words(const EngineOptions& options, const Parts& parts) {
  const std::string home = format_bytes(home_bytes(parts));
  if (options.speculate.within == Within::mtp)
    return fmt::format("the block behind the layers and the head stay in memory ({})", home);
  return fmt::format("the first {} of {} layers and the head stay in {} ({})", parts.plan.front_layers,
                     parts.model->program().layer_count(), on_gpu(parts) ? "VRAM" : "memory", home);
}

}  // namespace

bool drafts_within(const EngineOptions& options) {
  return options.speculate.within != Within::none && options.speculate.mode != SpeculateOptions::Mode::off;
}

const char* name_of(Within within) { return within == Within::mtp ? "multi-token prediction" : "self-speculation"; }

bool wants_draft_block(const EngineOptions& options) {
  return drafts_within(options) && options.speculate.within == Within::mtp && options.planning.follow == nullptr;
}

Status check_within(const EngineOptions& options, const Parts& parts) {
  if (options.planning.follow != nullptr)
    return error(Code::unsupported, "a saved plan already decides what stays in memory; leave one of the two out");
  if (options.speculate.within == Within::self)
    return check_self_draft(parts.model->program(), options.speculate.self_layers);
  if (parts.model->draft_program() != nullptr) return {};
  return error(Code::unsupported, "{}", parts.draft.words);
}

int front_of(const EngineOptions& options, const Parts& parts) {
  if (!drafts_within(options) || !check_within(options, parts).ok()) return 0;
  if (options.speculate.within == Within::mtp) return residency::kFrontOfHead;
  return options.speculate.self_layers > 0 ? options.speculate.self_layers : residency::kFrontOfPlan;
}

std::uint64_t within_bytes(const EngineOptions& options, const Parts& parts) {
  if (front_of(options, parts) == 0) return 0;
  const auto passes = [&](const exec::Program& program, const exec::PassLimits& limits) {
    return exec::cpu_activation_bytes(exec::pass_shape(program, parts.model->units(), limits), parts.pool->threads(),
                                      {parts.isa, true});
  };
  if (options.speculate.within == Within::self)
    return passes(parts.model->program(), self_draft_limits(parts.limits));  // of all layers: at least as much
  const exec::Program& program = *parts.model->draft_program();
  const kv::Layout layout = program.layout.with(options.kv.dtype, kv::kOnHost, options.kv.rotation);
  return passes(program, mtp_limits(parts.limits)) + mtp_waiting_bytes(parts.limits, parts.model->hyperparameters()) +
         kv::most_bytes(layout, kv_load(parts.limits), device::kPageBytes);
}

DraftForecast forecast_within(const EngineOptions& options, const Parts& parts) {
  return forecast_drafts(parts.plan, parts.rates, guess_seconds(plan_of_guess(options, parts), parts.rates),
                         draft_habits(options.speculate));
}

DraftSeat seat_within(const EngineOptions& options, const Parts& parts) {
  DraftSeat seat;
  seat.what = name_of(options.speculate.within);
  if (const Status able = check_within(options, parts); !able.ok()) {
    seat.words = able.message();
  } else if (parts.plan.front_layers == 0) {
    seat.words = no_front(options, parts);
  } else {
    const DraftHabits habits = draft_habits(options.speculate);
    DraftWays ways;
    seat.place = on_gpu(parts) ? DraftPlace::gpu : DraftPlace::cpu;
    ways[static_cast<std::size_t>(seat.place)].forecast = forecast_within(options, parts);
    ways[static_cast<std::size_t>(DraftPlace::none)].forecast = {parts.plan.predicted_decode_tokens_per_second, 0};
    seat.vram_bytes = parts.plan.vram_draft_bytes;
    seat.ram_bytes = on_gpu(parts) ? self_draft_host_bytes(parts.limits, parts.model->hyperparameters())
                                   : within_bytes(options, parts);
    seat.words = fmt::format("{}; {}", home_words(options, parts), describe_seat(seat, ways, habits));
  }
  return seat;
}

Expected<std::shared_ptr<Drafter>> make_within(const EngineOptions& options, Parts& parts) {
  std::shared_ptr<Drafter> drafter;
  if (options.speculate.within == Within::self) {
    MR_ASSIGN_OR_RETURN(drafter, SelfDrafter::make(parts.plan.front_layers, parts));
  } else {
    MR_ASSIGN_OR_RETURN(drafter, MtpDrafter::make(parts));
  }
  return drafter;
}

}  // namespace millrace::engine

#include "engine/within.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "device/host_memory.h"
#include "engine/assistant_drafter.h"
#include "engine/host_draft.h"
#include "engine/model_drafter.h"
#include "engine/mtp_drafter.h"
#include "engine/self_drafter.h"
#include "engine/setup.h"
#include "engine/step_cost.h"
#include "model/eagle3.h"
#include "model/gemma4_assistant.h"

namespace millrace::engine {
namespace {

/// What a guess goes through.
exec::Program passes_of(const EngineOptions& options, const Parts& parts) {
  const exec::Program& program = parts.model->program();
  if (options.speculate.within == Within::self) return program.first_layers(parts.plan.front_layers);
  return parts.model->draft_passes()->program;
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
  if (options.speculate.within == Within::eagle3)
    return fmt::format("its layer and the model's head stay in memory ({})", home);
  if (options.speculate.within == Within::assistant)
    return fmt::format("its layers and its head stay in memory ({})", home);
  return fmt::format("the first {} of {} layers and the head stay in {} ({})", parts.plan.front_layers,
                     parts.model->program().layer_count(), on_gpu(parts) ? "VRAM" : "memory", home);
}

}  // namespace

bool drafts_within(const EngineOptions& options) {
  return options.speculate.within != Within::none && options.speculate.mode != SpeculateOptions::Mode::off;
}

const char* name_of(Within within) {
  switch (within) {
    case Within::mtp:
      return "multi-token prediction";
    case Within::eagle3:
      return "the head of EAGLE-3";
    case Within::assistant:
      return "Gemma 4's assistant";
    default:
      return "self-speculation";
  }
}

EngineOptions with_head(EngineOptions options) {
  SpeculateOptions& speculate = options.speculate;
  if (speculate.draft_model.empty() || speculate.within != Within::none) return options;
  modelfile::OpenOptions outline;
  outline.outline = true;
  const auto file = modelfile::Model::open(speculate.draft_model, outline);
  if (file.ok() && model::is_eagle3(*file)) speculate.within = Within::eagle3;
  if (file.ok() && model::is_gemma4_assistant(*file)) speculate.within = Within::assistant;
  return options;
}

Expected<std::unique_ptr<model::Model>> load_with_drafter(const EngineOptions& options, const modelfile::Model& file,
                                                          model::LoadOptions how, DraftUnits place,
                                                          std::vector<std::string>& paths) {
  how.draft_block = true;
  how.draft_apart = place == DraftUnits::apart;
  if (options.speculate.within == Within::mtp) return model::load(file, how);
  if (options.speculate.within == Within::assistant && place == DraftUnits::apart)
    return error(
        Code::unsupported,
        "an assistant of Gemma 4 reads the model's keys and values, which lie in VRAM here, and this version has "
        "it on the processor alone; use --device cpu, or another drafter");
  const std::string& path = options.speculate.draft_model;
  MR_ASSIGN_OR_RETURN(const modelfile::Model head, modelfile::Model::open(path));
  if (head.has(kVocabularyKey)) MR_RETURN_IF_ERROR(check_vocabulary(options.model.path, path).status());
  how.draft_head = &head;
  MR_ASSIGN_OR_RETURN(std::unique_ptr<model::Model> model, model::load(file, how));
  paths.insert(paths.end(), head.paths().begin(), head.paths().end());
  return model;
}

bool wants_draft_block(const EngineOptions& options) {
  return drafts_within(options) && options.speculate.within != Within::self && options.planning.follow == nullptr;
}

Status check_within(const EngineOptions& options, const Parts& parts) {
  if (options.planning.follow != nullptr)
    return error(Code::unsupported, "a saved plan already decides what stays in memory; leave one of the two out");
  if (options.speculate.within == Within::self)
    return check_self_draft(parts.model->program(), options.speculate.self_layers);
  if (parts.model->draft_passes() == nullptr) return error(Code::unsupported, "{}", parts.draft.words);
  return check_kv(parts.model->draft_passes()->program.layout, options.kv.dtype);
}

int front_of(const EngineOptions& options, const Parts& parts) {
  if (!drafts_within(options) || !check_within(options, parts).ok()) return 0;
  if (options.speculate.within != Within::self) return parts.model->draft_passes()->units ? 0 : residency::kFrontOfHead;
  return options.speculate.self_layers > 0 ? options.speculate.self_layers : residency::kFrontOfPlan;
}

std::uint64_t within_bytes(const EngineOptions& options, const Parts& parts) {
  if (front_of(options, parts) == 0) return 0;
  if (options.speculate.within != Within::self)
    return draft_pass_bytes(options, parts, parts.pool->threads(), parts.isa);
  const exec::PassShape all_layers =  // at least as much as the first ones take
      exec::pass_shape(parts.model->program(), parts.model->units(), self_draft_limits(parts.limits));
  return exec::cpu_activation_bytes(all_layers, parts.pool->threads(), {parts.isa, true});
}

std::uint64_t draft_pass_bytes(const EngineOptions& options, const Parts& parts, int threads, kernels::Isa isa) {
  const model::DraftPasses& draft = *parts.model->draft_passes();
  const residency::UnitTable& units = draft.units ? *draft.units : parts.model->units();
  const auto passes = [&](const exec::Program& program, const exec::PassLimits& limits) {
    return exec::cpu_activation_bytes(exec::pass_shape(program, units, limits), threads, {isa, true});
  };
  if (draft.reads_model)
    return passes(draft.program, self_draft_limits(parts.limits)) + assistant_bytes(parts.limits, *parts.model);
  const kv::Layout layout = draft.program.layout.with(options.kv.dtype, kv::kOnHost, options.kv.rotation);
  const std::uint64_t fusion = draft.fusion ? passes(*draft.fusion, mtp_fusion_limits()) : 0;
  return passes(draft.program, mtp_limits(parts.limits)) + fusion + mtp_waiting_bytes(parts.limits, *parts.model) +
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
  } else if (options.speculate.within == Within::assistant) {
    MR_ASSIGN_OR_RETURN(drafter, AssistantDrafter::make(parts));
  } else {
    std::unique_ptr<HostDraft> host;
    if (parts.model->draft_passes()->units) {
      MR_ASSIGN_OR_RETURN(host, make_host_draft(options, parts));
    }
    MR_ASSIGN_OR_RETURN(drafter, MtpDrafter::make(parts, std::move(host)));
  }
  return drafter;
}

}  // namespace millrace::engine

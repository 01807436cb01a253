#include "engine/host_draft.h"

#include <algorithm>

#include "engine/model_drafter.h"
#include "engine/setup.h"
#include "engine/step_cost.h"
#include "engine/within.h"

namespace millrace::engine {
namespace {

/// The cost of a guess: each weight in RAM is read once.
residency::Plan plan_of_guess(const model::DraftPasses& passes, const kv::Layout& layout,
                              const residency::Plan& weights) {
  residency::Plan plan;
  plan.predicted_hit_rate = 1;
  residency::PassCost& cost = plan.cost;
  cost.layers = passes.program.layer_count();
  cost.steps = step_cost(passes.program, layout);
  cost.attention = attention_costs(passes.program, layout);
  const std::vector<residency::Unit>& units = passes.units->units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (!weights.front[u]) continue;
    cost.home += static_cast<double>(units[u].bytes());
    for (const residency::Part& part : units[u].parts) cost.macs += static_cast<double>(part.rows * part.cols);
  }
  return plan;
}

Expected<residency::Plan> plan_weights(const model::DraftPasses& passes) {
  residency::PlanOptions all_at_home;
  all_at_home.ram_bytes = UINT64_MAX / 2;
  all_at_home.front_layers = residency::kFrontOfHead;
  return residency::make_plan(*passes.units, all_at_home, {});
}

}  // namespace

Expected<HostDraftPlan> plan_host_draft(const EngineOptions& options, const Parts& parts) {
  const model::DraftPasses& passes = *parts.model->draft_passes();
  HostDraftPlan plan;
  MR_ASSIGN_OR_RETURN(plan.weights, plan_weights(passes));
  plan.guess = plan_of_guess(passes, passes.program.layout.with(options.kv.dtype, kv::kOnHost, options.kv.rotation),
                             plan.weights);
  plan.ram_bytes = plan.weights.weight_memory_bytes() +
                   draft_pass_bytes(options, parts, options.device.cpu_threads(), options.device.cpu_isa()) +
                   kDraftMargin;
  const std::uint64_t ram = ram_of(options);
  if (plan.ram_bytes <= ram / 2) return plan;
  return error(Code::out_of_budget, "it takes {} of RAM with its KV, more than half of {}",
               format_bytes(plan.ram_bytes), format_bytes(ram));
}

Expected<std::unique_ptr<HostDraft>> make_host_draft(const EngineOptions& options, const Parts& parts) {
  const model::DraftPasses& passes = *parts.model->draft_passes();
  MR_ASSIGN_OR_RETURN(const residency::Plan weights, plan_weights(passes));
  auto host = std::make_unique<HostDraft>();
  host->isa = options.device.cpu_isa();
  host->pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = options.device.threads});
  host->budget =
      std::make_unique<residency::Budget>(parts.draft.ram_bytes - std::min(kDraftMargin, parts.draft.ram_bytes));
  MR_ASSIGN_OR_RETURN(host->store,
                      residency::WeightStore::create(*passes.units, weights, *parts.backend, *host->budget, {}));
  return host;
}

}  // namespace millrace::engine

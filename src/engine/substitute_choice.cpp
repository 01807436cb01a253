#include "engine/substitute_choice.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/device_choice.h"
#include "engine/model_drafter.h"
#include "engine/setup.h"
#include "engine/within.h"
#include "kv/model_identity.h"

namespace millrace::engine {
namespace {

bool asked_for(const EngineOptions& options) {
  return drafts_within(options) && options.speculate.within == Within::substitutes && options.follow == nullptr;
}

Expected<std::unique_ptr<residency::Substitutes>> open(const EngineOptions& options, const Parts& parts,
                                                       const std::string& first_file) {
  MR_ASSIGN_OR_RETURN(const modelfile::Model file,
                      modelfile::Model::open(options.model_path, {.skip_vocabulary = true}));
  MR_ASSIGN_OR_RETURN(const std::string identity, kv::model_identity(file));
  const std::string& named = options.speculate.substitutes;
  return residency::Substitutes::open(named.empty() ? first_file + ".substitute" : named, file, parts.model->units(),
                                      identity);
}

constexpr std::int64_t kRowsToVerify = 7;  // guesses of a pass, at least

/// Why the plan that was just made with them is not to be kept; empty: it is. `without`: the limits of the plan
/// without.
std::string refusal(const EngineOptions& options, const Parts& parts, const Limits& without,
                    double without_tokens_per_second) {
  if (parts.plan.front_layers == 0) return "the budget has no room for them";
  const Limits& limits = parts.limits;
  if (limits.context_tokens < without.context_tokens)
    return fmt::format("they would leave {} of {} tokens of context", limits.context_tokens, without.context_tokens);
  if (limits.logit_rows < std::min(without.logit_rows, limits.sequences + kRowsToVerify))
    return "beside them the budget has no room for passes that verify guesses";
  const double with = forecast_within(options, parts).tokens_per_second;
  const bool insists = draft_habits(options.speculate).drafts > 0;
  if (insists || with <= 0 || without_tokens_per_second <= 0 || with > without_tokens_per_second) return {};
  return fmt::format("{:.3g} tok/s are predicted with them, {:.3g} without; --speculate N insists", with,
                     without_tokens_per_second);
}

void leave_out(Parts& parts, std::string why) {
  parts.guess_by_substitutes = false;
  parts.draft.words = std::move(why);
  parts.model = parts.model->with(residency::without_substitutes(parts.model->units(), parts.limits.tile_bytes));
}

}  // namespace

void find_substitutes(const EngineOptions& options, bool beside_gpu, Parts& parts, std::vector<std::string>& paths) {
  if (!asked_for(options)) return;
  if (beside_gpu && parts.model->units().experts() > 0) {
    parts.draft.words =
        "a GPU has them of layers that stream, and of a mixture none does; give --draft FILE, or --device cpu";
    return;
  }
  auto found = open(options, parts, paths.front());
  if (!found.ok()) return void(parts.draft.words = found.status().message());
  parts.substitutes = std::move(*found);
  parts.substitutes_file = static_cast<int>(paths.size());
  paths.push_back(parts.substitutes->path());
}

void add_substitutes(std::uint64_t tile_bytes, Parts& parts) {
  if (parts.substitutes == nullptr) return;
  parts.model = parts.model->with(parts.substitutes->beside(parts.model->units(), tile_bytes, parts.substitutes_file));
}

Status plan_substitutes(const EngineOptions& options, const std::function<Status()>& plan, Parts& parts) {
  parts.guess_by_substitutes = false;
  MR_RETURN_IF_ERROR(plan());
  if (!residency::has_substitutes(parts.model->units())) return {};
  const bool on_gpu = parts.plan_options.vram_bytes > 0;
  const bool streams = on_gpu ? streams_to_gpu(parts.model->units(), parts.plan)
                              : residency::reads_disk(parts.model->units(), parts.plan);
  if (!streams) {
    leave_out(parts, fmt::format("all weights stay in {}: none is needed", on_gpu ? "VRAM" : "memory"));
    return plan();
  }
  const double without = parts.plan.predicted_decode_tokens_per_second;
  const Limits limits = parts.limits;
  parts.guess_by_substitutes = true;
  const Status planned = plan();
  std::string why = planned.ok() ? refusal(options, parts, limits, without) : planned.message();
  if (why.empty()) return {};
  leave_out(parts, std::move(why));
  return plan();
}

}  // namespace millrace::engine

#include "engine/limits.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "engine/draft_choice.h"

namespace millrace::engine {
namespace {

/// KV of all requests to a server where nobody says how much and memory is short.
constexpr std::int64_t kContextsOfKv = 4;

/// What follows from context and rows.
void set_shared(const Demand& demand, const LimitRules& rules, Limits& limits) {
  const std::int64_t all = whole_blocks(limits.context_tokens) * limits.sequences;
  // Less than a context for all of them would leave one alone without room.
  limits.kv_tokens = demand.kv_tokens == 0
                         ? all
                         : std::clamp(whole_blocks(demand.kv_tokens), whole_blocks(limits.context_tokens), all);
  const std::int64_t chunk = demand.chunk_tokens > 0 ? demand.chunk_tokens : rules.chunk_tokens;
  limits.chunk_tokens = std::min(std::max(chunk, rules.prompt_chunk), limits.batch_tokens);
  limits.queue = demand.max_queue;
  limits.passes = demand.ranks;
  limits.kv_dtype = demand.kv_dtype;
}

/// Fewer rows would keep a prompt that goes by chunks from going on while all sequences decode, and guess.
std::int64_t least_rows(const LimitRules& rules, const Limits& limits) {
  if (rules.whole_prompts) return std::max(limits.context_tokens, limits.sequences);
  if (rules.prompt_chunk == 1) return limits.sequences;
  return rules.prompt_chunk + std::max(PassCosts::kMostRows, limits.sequences);
}

/// The next smaller limits; false when they are as small as they get.
bool shrink(const Demand& demand, const LimitRules& rules, Limits& limits) {
  const auto halved = [](std::int64_t now, std::int64_t least) { return std::min(now, std::max(least, now / 2)); };
  const Limits before = limits;
  limits.batch_tokens = halved(limits.batch_tokens, std::max(rules.least_batch, least_rows(rules, limits)));
  limits.work_tokens = std::min(limits.work_tokens, limits.batch_tokens);
  if (demand.context_tokens == 0) limits.context_tokens = halved(limits.context_tokens, rules.least_context);
  limits.logit_rows = rules.fewer_logits ? halved(limits.logit_rows, limits.sequences)
                                         : std::min(limits.logit_rows, std::max(limits.sequences, limits.batch_tokens));
  set_shared(demand, rules, limits);
  return limits.batch_tokens != before.batch_tokens || limits.context_tokens != before.context_tokens ||
         limits.logit_rows != before.logit_rows;
}

}  // namespace

exec::PassLimits pass_limits(const Limits& limits) {
  exec::PassLimits pass;
  pass.max_rows = limits.batch_tokens;
  pass.work_rows = limits.work_tokens;
  pass.max_sequences = limits.sequences;
  pass.max_logit_rows = limits.logit_rows;
  pass.max_positions = limits.context_tokens;
  pass.routed_layers = limits.routed_layers;
  pass.kv_dtype = limits.kv_dtype;
  pass.adapters = limits.adapters;
  pass.adapter_rank = limits.adapter_rank;
  return pass;
}

kv::Load kv_load(const Limits& limits) {
  return {limits.kv_tokens, limits.sequences, limits.batch_tokens * limits.passes};
}

std::int64_t whole_blocks(std::int64_t tokens) {
  return static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(tokens), kv::kBlockTokens));
}

Demand::Demand(const EngineOptions& options)
    : DemandOptions(options.demand),
      ranks(options.part.ranks),
      kv_dtype(options.kv.dtype),
      chooses_context(options.part.cluster == nullptr && ranks == 1 && options.device.gpus_beside.empty()) {}

std::int64_t wanted_context(const Demand& demand, const model::Hyperparameters& hp) {
  if (demand.context_tokens > 0)
    return hp.most_positions > 0 ? std::min(demand.context_tokens, hp.most_positions) : demand.context_tokens;
  return std::min(hp.context_length, std::max(kAutomaticContext, demand.automatic_context));
}

void set_rows(const Demand& demand, const LimitRules& rules, std::int64_t wanted_rows, Limits& limits) {
  limits.batch_tokens =
      std::max(std::min(wanted_rows, limits.context_tokens * limits.sequences), least_rows(rules, limits));
  set_shared(demand, rules, limits);
}

Status fit_limits(const Demand& demand, const LimitRules& rules, Limits& limits,
                  const std::function<Status()>& attempt) {
  Status status = attempt();
  while (status.code() == Code::out_of_budget && shrink(demand, rules, limits)) status = attempt();
  return status;
}

bool shares_out(const DemandOptions& demand) { return demand.max_sequences == 0 || demand.fewer_sequences; }

void choose_context(const model::Hyperparameters& hp, const SharedMemory& memory, Demand& demand) {
  if (demand.context_tokens > 0 || !demand.chooses_context) return;
  const bool pooled = demand.kv_tokens > 0 || shares_out(demand);
  const std::int64_t sharers = pooled ? 1 : std::max<std::int64_t>(1, demand.max_sequences);
  std::int64_t context = std::min(hp.context_length, kLongestAutomaticContext);
  while (context > kAutomaticContext && memory.kv_bytes(context * sharers, sharers) > memory.half_of_rest())
    context /= 2;
  demand.automatic_context = context;
}

void share_out(const model::Hyperparameters& hp, const SharedMemory& memory, Demand& demand) {
  choose_context(hp, memory, demand);
  if (!shares_out(demand)) return;
  const std::int64_t context = wanted_context(demand, hp);
  SharingInput input{memory, hp.vocab, context, demand.max_sequences};
  const bool by_default = demand.fewer_sequences && demand.kv_tokens == 0;
  if (by_default) input.most_kv_tokens = kContextsOfKv * std::max(demand.context_tokens, kAutomaticContext);
  if (demand.fewer_sequences && !by_default) input.most_kv_tokens = demand.kv_tokens;
  Sharing sharing = choose_sharing(input);
  demand.max_sequences = sharing.sequences;
  if (demand.kv_tokens > 0 && !demand.fewer_sequences) return;
  // A context for each of them, or the largest half, quarter and so on of that which takes no more than half of what is
  // over: KV grows by use, and requests without room for theirs begin anew.
  std::int64_t tokens = by_default ? sharing.sequences * context : 0;
  while (tokens > sharing.kv_tokens && input.kv_bytes(tokens, sharing.sequences) > memory.half_of_rest()) tokens /= 2;
  demand.kv_tokens = std::max(tokens, sharing.kv_tokens);
}

Status fit_sequences(bool open, Demand& demand, const std::function<Status()>& plan) {
  Status status = plan();
  while (status.code() == Code::out_of_budget && open && demand.max_sequences > 1) {
    demand.max_sequences /= 2;
    if (demand.kv_tokens > 0) demand.kv_tokens = std::max<std::int64_t>(1, demand.kv_tokens / 2);
    status = plan();
  }
  return status;
}

}  // namespace millrace::engine

// The limits of a run, and the search for limits under which a plan fits. The CPU and a GPU share the search; they
// differ in their initial limits and in their memory. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/sharing.h"
#include "exec/program.h"
#include "kv/footprint.h"

namespace millrace::engine {

/// The default context in tokens (without --ctx or num_ctx) if memory is short; the largest default if it is not; and
/// the smallest context that a small budget is reduced to.
constexpr std::int64_t kAutomaticContext = 4096, kLongestAutomaticContext = 65'536, kLeastContext = 256;

/// The limits of a run.
struct Limits {
  std::int64_t context_tokens = 0;  // of one sequence
  std::int64_t batch_tokens = 0;    // rows of a pass
  std::int64_t work_tokens = 0;     // rows that a GPU computes at once; 0: all
  std::int64_t logit_rows = 0;      // rows of a pass whose logits may be requested
  std::int64_t sequences = 0;
  std::int64_t kv_tokens = 0;     // KV of all sequences together, whole blocks
  std::int64_t chunk_tokens = 0;  // prompt rows of a pass that has decode rows
  std::int64_t queue = 0;         // requests that wait at most; 0: any number
  std::int64_t passes = 1;        // that are under way at a time
  std::uint64_t tile_bytes = 0;
  std::int64_t routed_layers = 0;               // exec::PassLimits
  DType kv_dtype = DType::f16;                  // likewise
  std::int64_t adapters = 0, adapter_rank = 0;  // likewise
};
/// The size of passes under these limits.
exec::PassLimits pass_limits(const Limits& limits);
/// The most KV that sequences may use: rows of every pass in flight keep their blocks until it ends.
kv::Load kv_load(const Limits& limits);
/// `tokens` rounded up to whole blocks of KV.
std::int64_t whole_blocks(std::int64_t tokens);

/// The demand that a run is planned for: the options, completed by the functions below.
struct Demand : DemandOptions {
  explicit Demand(const EngineOptions& options);

  std::int64_t automatic_context = 0;  // tokens, found by choose_context(); 0: none
  int ranks = 1;                       // PartOptions::ranks
  DType kv_dtype = DType::f16;
  bool chooses_context = false;  // false: several processes or GPUs agree on one that needs no measuring
};

/// The context of one sequence: that of the options, limited to the positions that the model has; otherwise the model's
/// context, limited to the result of choose_context() or the default.
std::int64_t wanted_context(const Demand& demand, const model::Hyperparameters& hp);

/// How the limits of a device are reduced.
struct LimitRules {
  std::int64_t least_batch = 1, least_context = kLeastContext;
  std::int64_t chunk_tokens = 0;  // where the options do not say
  std::int64_t prompt_chunk = 1;  // exec::Executor::prompt_chunk(): a pass has room for one beside all sequences
  bool whole_prompts = false;     // no prompt is cut: a pass has room for a context (exec::Program::is_causal())
  bool fewer_logits = false;      // rows of logits shrink like those of the batch; else they are as many at most
};
/// Sets the rows of a pass, at most one context per sequence, and the limits that follow from context and rows.
void set_rows(const Demand& demand, const LimitRules& rules, std::int64_t wanted_rows, Limits& limits);
/// Halves the limits repeatedly until `attempt` returns anything but out_of_budget, or the limits are minimal.
Status fit_limits(const Demand& demand, const LimitRules& rules, Limits& limits,
                  const std::function<Status()>& attempt);

/// Whether the planner chooses how many requests share a pass.
bool shares_out(const DemandOptions& demand);
/// Chooses the context if the options do not: the model's context if its KV takes at most half of the memory that the
/// weights leave, otherwise the largest half, quarter and so on that does.
void choose_context(const model::Hyperparameters& hp, const SharedMemory& memory, Demand& demand);
/// Chooses the context and, if the planner chooses that, how many requests may share passes, up to the options' limits.
void share_out(const model::Hyperparameters& hp, const SharedMemory& memory, Demand& demand);
/// Halves the number of requests, and their KV, while `plan` returns out_of_budget. open: shares_out() of the user's
/// demand.
Status fit_sequences(bool open, Demand& demand, const std::function<Status()>& plan);

}  // namespace millrace::engine

// What a run may hold at most, and how that is made smaller until a plan fits: one way for the CPU and for a GPU, which
// differ in how their limits begin and in what they take. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"
#include "engine/engine.h"
#include "exec/program.h"
#include "kv/footprint.h"

namespace millrace::engine {

/// Tokens of a context where nobody says how many (--ctx, num_ctx) and memory is short; the most where it is not; and
/// the fewest that a small budget leaves.
constexpr std::int64_t kAutomaticContext = 4096, kLongestAutomaticContext = 65'536, kLeastContext = 256;

/// What a run may hold at most.
struct Limits {
  std::int64_t context_tokens = 0;  // of one sequence
  std::int64_t batch_tokens = 0;    // rows of a pass
  std::int64_t work_tokens = 0;     // of them that a GPU works at once; 0: all
  std::int64_t logit_rows = 0;      // rows of a pass that may want logits
  std::int64_t sequences = 0;
  std::int64_t kv_tokens = 0;     // KV of all sequences together, whole blocks
  std::int64_t chunk_tokens = 0;  // prompt rows of a pass that has decode rows
  std::int64_t queue = 0;         // requests that wait at most; 0: any number
  std::int64_t passes = 1;        // that are under way at a time
  std::uint64_t tile_bytes = 0;
  std::int64_t routed_layers = 0;  // exec::PassLimits
  DType kv_dtype = DType::f16;     // likewise
};
/// How large passes may be under these limits.
exec::PassLimits pass_limits(const Limits& limits);
/// What sequences may take at most: rows of every pass under way keep their blocks until it ends.
kv::Load kv_load(const Limits& limits);
/// Tokens in whole blocks of KV, at least so many.
std::int64_t whole_blocks(std::int64_t tokens);

/// What a run is planned for: what the options ask for, in which the functions below fill in what nobody said.
struct Demand : DemandOptions {
  explicit Demand(const EngineOptions& options);

  std::int64_t automatic_context = 0;  // tokens, found by choose_context(); 0: none
  int ranks = 1;                       // PartOptions::ranks
  DType kv_dtype = DType::f16;
  bool chooses_context = false;  // false: several processes or GPUs agree on one that needs no measuring
};

/// Of one sequence: as the options say, at most the positions that there are, else the model's, but no more than
/// choose_context() found or is usual.
std::int64_t wanted_context(const Demand& demand, const model::Hyperparameters& hp);

/// How limits of a device shrink.
struct LimitRules {
  std::int64_t least_batch = 1, least_context = kLeastContext;
  std::int64_t chunk_tokens = 0;  // where the options do not say
  std::int64_t prompt_chunk = 1;  // exec::Executor::prompt_chunk(): a pass has room for one beside all sequences
  bool whole_prompts = false;     // no prompt is cut: a pass has room for a context (exec::Program::is_causal())
  bool fewer_logits = false;      // rows of logits shrink like those of the batch; else they are as many at most
};
/// Rows of a pass, a context each for the sequences at most; and what follows from context and rows.
void set_rows(const Demand& demand, const LimitRules& rules, std::int64_t wanted_rows, Limits& limits);
/// Tries limits that are half as large each time, until `attempt` returns other than out_of_budget or they are as small
/// as they get.
Status fit_limits(const Demand& demand, const LimitRules& rules, Limits& limits,
                  const std::function<Status()>& attempt);

/// Is it for the planner to say how many requests share a pass?
bool shares_out(const DemandOptions& demand);
/// `cap_bytes` of memory, `taken_bytes` of it by others than KV.
struct SharedMemory {
  std::uint64_t cap_bytes = 0, taken_bytes = 0;
  bool weights_give_way = false;
  std::function<std::uint64_t(std::int64_t tokens, std::int64_t sequences)> kv_bytes;
};
/// Where nobody says how long a context is: the model's, if its KV takes at most half of what the weights leave, or the
/// largest half, quarter and so on of it that does.
void choose_context(const model::Hyperparameters& hp, const SharedMemory& memory, Demand& demand);
/// How many requests may share passes, with the ceilings that the options set. After choose_context().
void share_out(const model::Hyperparameters& hp, SharedMemory memory, Demand& demand);
/// Tries with half as many requests, and half their KV, while `plan` returns out_of_budget. open: shares_out() of what
/// the user asked for.
Status fit_sequences(bool open, Demand& demand, const std::function<Status()>& plan);

}  // namespace millrace::engine

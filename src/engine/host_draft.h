// The block or the head that guesses on the CPU for a model on a GPU: its weights lie in RAM, in a store of their own,
// and it reads states that the GPU's passes leave. The planner knows its bytes before the model's homes are chosen, and
// the model's budget grants them as it grants those of a draft model on the CPU. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "residency/budget.h"
#include "residency/plan.h"
#include "residency/weight_store.h"

namespace millrace::engine {

struct Parts;

/// What it takes, found without reading a weight.
struct HostDraftPlan {
  residency::Plan weights;      // its units in RAM, but for the rows of an embedding
  residency::Plan guess;        // the cost of a pass of one row
  std::uint64_t ram_bytes = 0;  // with activations, KV and threads
};
/// For the limits that `parts` have now; its model was loaded with LoadOptions::draft_apart. Errors: out_of_budget (RAM
/// has no room for it).
Expected<HostDraftPlan> plan_host_draft(const EngineOptions& options, const Parts& parts);

/// Threads, budget and weights of its passes, which outlive its executors.
struct HostDraft {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<residency::Budget> budget;
  std::unique_ptr<residency::WeightStore> store;
  kernels::Isa isa = kernels::Isa::plain;
};
/// Within the bytes of the seat (Parts::draft), which the model's budget has granted. `parts` outlives it. Errors:
/// out_of_budget.
Expected<std::unique_ptr<HostDraft>> make_host_draft(const EngineOptions& options, const Parts& parts);

}  // namespace millrace::engine

// A draft model on the GPU of the model that it guesses for: wholly in VRAM, under the same caps, with an executor, KV
// and graphs of its own. What it takes is known before the large model's homes are chosen, which have to make room.
// Thread-safety: one thread.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/gpu/plan.h"
#include "engine/model_drafter.h"

namespace millrace::engine {

/// Of a draft model, found without reading a weight.
struct GpuDraftPlan {
  Limits limits;         // of its passes
  TakenMemory taken;     // of the caps
  residency::Plan plan;  // wholly in VRAM
};
/// Errors: unsupported (something of it is none of the GPU part's), those of opening a model.
Expected<GpuDraftPlan> plan_gpu_draft(const DraftModelPlan& draft, const device::Gpu& gpu);

/// Plans the model with the block or the head that guesses on the CPU, and without it, and keeps the better one, as
/// seat_draft() does. REQUIRES: the model has draft passes, and `planner` a plan without them. Errors: as there.
Status seat_host_draft(const EngineOptions& options, GpuPlanner& planner, Parts& parts);

/// Plans the large model with the draft model in VRAM, on the CPU and without it, and keeps the best one: in `parts`
/// the plan and its seat. What is chosen is in the log. Errors: as GpuPlanner::plan without it.
Status seat_draft(const EngineOptions& options, const DraftModelPlan& draft, const device::Gpu& gpu,
                  GpuPlanner& planner, Parts& parts);

}  // namespace millrace::engine

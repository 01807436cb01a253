// What a pass costs beside the weights that it reads, counted from the program: what predictions are made of.
// Thread-safety: pure functions.
#pragma once

#include <vector>

#include "exec/program.h"
#include "kv/layout.h"
#include "model/model.h"
#include "residency/plan.h"

namespace millrace::engine {

/// What a pass does one after the other, and the states it takes along.
residency::StepCost step_cost(const exec::Program& program, const kv::Layout& layout);

/// What attention costs a pass: of its steps, by window, with KV as `layout` keeps it.
std::vector<residency::AttentionCost> attention_costs(const exec::Program& program, const kv::Layout& layout);

/// What a plan has to know of the model's passes, with KV as `layout` keeps it.
residency::PassDemand pass_demand(const model::Model& model, const kv::Layout& layout);

}  // namespace millrace::engine

// Who computes a model that does not fit into VRAM as a whole, where the user left it open. Pure.
#pragma once

#include "residency/plan.h"
#include "residency/unit.h"

namespace millrace::engine {

/// Does some of what every token needs cross to the GPU in each pass?
bool streams_to_gpu(const residency::UnitTable& units, const residency::Plan& gpu);

/// Is the CPU predicted to decode more tokens a second than the GPU? False where either prediction is missing, and
/// where both are alike: prompts are the GPU's strength.
bool cpu_decodes_faster(const residency::Plan& gpu, const residency::Plan& cpu);

}  // namespace millrace::engine

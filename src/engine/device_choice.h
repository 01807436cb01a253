// Chooses the device of a model that does not fit into VRAM, if the user did not. Pure.
#pragma once

#include "residency/plan.h"
#include "residency/unit.h"

namespace millrace::engine {

/// Whether weights that every token needs cross to the GPU in each pass.
bool streams_to_gpu(const residency::UnitTable& units, const residency::Plan& gpu);

/// Whether the CPU is predicted to decode more tokens per second than the GPU. False if a prediction is missing, and if
/// both are equal, because the GPU computes prompts faster.
bool cpu_decodes_faster(const residency::Plan& gpu, const residency::Plan& cpu);

}  // namespace millrace::engine

// What the processor's kernels do depends on the type of the weights: the machine's rates, made a model's. Pure.
#pragma once

#include <vector>

#include "residency/plan.h"
#include "residency/unit.h"

namespace millrace::residency {

/// What the processor computes with for a decoded token, by type, in ascending order of types: trunks, head, and of a
/// layer's experts the part that a token uses. Beside a GPU (`gpu`) experts where there are any, or else trunks. top_k:
/// experts that a token uses in a layer; 0 for dense models.
std::vector<TypeWeights> weights_by_type(const UnitTable& units, int top_k, bool gpu);

/// The rates that these weights all together are computed at by the processor: what was measured for each type, or
/// Q4_K's where that was not. Its `types` are empty, so that doing it twice changes nothing.
Rates rates_for(const std::vector<TypeWeights>& weights, const Rates& rates);

}  // namespace millrace::residency

// The rates of the CPU's kernels depend on the type of the weights. These functions derive the rates for a model from
// those of the machine. Pure.
#pragma once

#include <vector>

#include "residency/plan.h"
#include "residency/unit.h"

namespace millrace::residency {

/// The weights that the CPU uses for a decoded token, by type, in ascending order of types: trunks, head, and the part
/// of each layer's experts that a token uses. With a GPU (`gpu`), only the experts if there are any, or else the
/// trunks. top_k: experts that a token uses in a layer; 0 for dense models.
std::vector<TypeWeights> weights_by_type(const UnitTable& units, int top_k, bool gpu);

/// The CPU's combined rates for these weights: the measured rate of each type, or Q4_K's if a type was not measured.
/// The result's `types` are empty, so that applying the function twice changes nothing.
Rates rates_for(const std::vector<TypeWeights>& weights, const Rates& rates);

}  // namespace millrace::residency

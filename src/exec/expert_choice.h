// Which experts a row goes to, and with what weights, by what its router gave each of them. Pure; any thread.
#pragma once

#include <cstdint>

#include "exec/program.h"
#include "kernels/kernels.h"

namespace millrace::exec {

/// Of one row. `scores` [count]: the router's logits, which become the gate's scores. `bias` [count]: of the choice;
/// null: none. `selection` [count]: scratch. Out: `chosen` and `weight` [top_k], those that the choice prefers first.
/// With Experts::of_tokens `chosen` is input, and only weights are found.
void choose_experts(const kernels::Table& table, const Experts& experts, const float* bias, float* scores,
                    float* selection, std::int32_t* chosen, float* weight);

}  // namespace millrace::exec

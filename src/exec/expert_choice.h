// Which experts a row goes to, and with what weights, by what its router gave each of them. Pure; any thread.
//
// Experts that lie in the fastest tier may be preferred (a route bias): the score by which experts are chosen is raised
// for them, and the weights of those chosen are computed from the router's scores as ever. A row's answer then depends
// on what lies in memory, so it changes what a model says.
//   score   what the choice compares: the router's logits, where the gate keeps their order (softmax of all or of
//           those chosen, without a bias of the choice and without groups), else the gate's scores and the bias
//   raised  by `of_range` times the difference between the row's largest score and its smallest, of the experts in the
//           groups chosen: 0 changes nothing, with 1 no other expert goes before a preferred one
//           of an expert in a tier between, its share of that: half of it where the middle one of three has it
//   kept    the expert with the largest score is chosen wherever it lies
#pragma once

#include <cstdint>

#include "exec/program.h"
#include "kernels/kernels.h"

namespace millrace::exec {

/// Which experts are preferred, and how much.
struct RouteBias {
  float of_range = 0;
  /// [count]: an expert's tier, counted from the slowest, 0, to the fastest, `tiers`; null: there is no bias.
  const std::uint8_t* near = nullptr;
  std::int32_t tiers = 1;
};

/// Of one row. `scores` [count]: the router's logits, which become the gate's scores. `bias` [count]: of the choice;
/// null: none. `selection` [count]: scratch. Out: `chosen` and `weight` [top_k], those that the choice prefers first.
void choose_experts(const kernels::Table& table, const Experts& experts, const float* bias, const RouteBias& route,
                    float* scores, float* selection, std::int32_t* chosen, float* weight);

}  // namespace millrace::exec

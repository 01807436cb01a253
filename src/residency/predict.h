// How fast a plan will be, from what its passes move and compute and the machine's rates. Pure functions.
#pragma once

#include <cstdint>

#include "residency/plan.h"

namespace millrace::residency {

// Of a disk whose latency was not measured (by an older version's calibration): reads reach half its rate with about so
// many bytes in flight (1 MiB requests on NVMe: 55 % with one, 89 % with two, all with four).
constexpr double kHalfRateInFlight = 1 << 20;
/// How many bytes read in order take as long as these with so many in flight. What is in flight together waits once for
/// the disk to answer, and that takes as long as so many bytes at its rate.
double bytes_in_order(double bytes, double in_flight, const Rates& rates);

/// What passes of a plan cost, by its homes.
PassCost pass_cost(const UnitTable& units, const Plan& plan, const PlanOptions& options, bool gpu);
/// Of a pass of few rows beside a GPU: weight bytes that the processor computes with where they lie.
double host_bytes(const Plan& plan);
/// Weight bytes a second of those, in passes of so many rows.
double shared_decode(const PassCost& cost, const Rates& rates, double rows);
/// Likewise of experts that have no slot in VRAM, for one row.
double host_expert_bytes(const Plan& plan);
/// And how long it waits for the GPU's own work. shares: it has some rows of every matrix that is not all its own.
double host_rest_seconds(const Plan& plan, const Rates& rates, bool shares);

/// Of a layer's experts without slots in VRAM, what the GPU reads across the link so that this and the processor's
/// products of the others end together. None where a rate is missing.
LinkShare link_share(const Rates& rates);

/// What a pass of the processor's takes beside bytes and multiply-accumulates, for so many sequences: its products
/// begin and end, its other steps, and states.
double step_seconds(const StepCost& steps, const Rates& rates, double sequences);

/// What is asked of the model.
struct Work {
  std::int64_t prompt_tokens = 0;  // of each prompt that is read; 0: decoding
  std::int64_t sequences = 1;      // side by side
  std::int64_t context = 0;        // keys that every token has before it (a prompt's own not among them)
};

/// A pass, and what it waits for longest: "vram", "pcie", "disk", "ram", "compute"; empty where a rate is missing.
struct PassTime {
  double seconds = 0;
  const char* bound = "";
};
/// rows: tokens of the pass, of prompts where the work is one.
PassTime predict_pass(const Plan& plan, const Rates& rates, const Work& work, double rows);

/// Tokens a second, all sequences together; 0 where a rate is missing.
double predict_tokens_per_second(const Plan& plan, const Rates& rates, const Work& work);

}  // namespace millrace::residency

// Predicts a plan's speed from what its passes move and compute, and from the machine's rates. Pure functions.
#pragma once

#include <cstdint>

#include "residency/plan.h"

namespace millrace::residency {

// For a disk whose latency was not measured (by the calibration of an older version): reads reach half its rate with
// about this many bytes in flight (1 MiB requests on NVMe: 55 % with one, 89 % with two, all with four).
constexpr double kHalfRateInFlight = 1 << 20;
/// Converts scattered reads to ordered ones: the number of bytes read in order that take as long as `bytes` with
/// `in_flight` bytes in flight. Reads in flight together wait once for the disk's latency.
double bytes_in_order(double bytes, double in_flight, const Rates& rates);

/// The cost of a plan's passes, from its homes.
PassCost pass_cost(const UnitTable& units, const Plan& plan, const PlanOptions& options, bool gpu);
/// In a pass of few rows with a GPU: the weight bytes that the CPU uses in place.
double host_bytes(const Plan& plan);
/// The rate at which the CPU uses them, in weight bytes per second, in passes of `rows` rows.
double shared_decode(const PassCost& cost, const Rates& rates, double rows);
/// For one row: the bytes of experts without a slot in VRAM that the CPU uses in place.
double host_expert_bytes(const Plan& plan);
/// How long the CPU waits for the GPU's part of a pass. shares: the CPU computes rows of matrices that the GPU shares.
double host_rest_seconds(const Plan& plan, const Rates& rates, bool shares);

/// The part of a layer's experts without slots in VRAM that the GPU reads across the link, chosen so that it finishes
/// together with the CPU's products of the others. None if a rate is missing.
LinkShare link_share(const Rates& rates);

/// The overhead of a pass on the CPU beside bytes and multiply-accumulates, for this many sequences: starting and
/// ending products, the other steps, and states.
double step_seconds(const StepCost& steps, const Rates& rates, double sequences);

/// The work to predict.
struct Work {
  std::int64_t prompt_tokens = 0;  // of each prompt; 0: decoding
  std::int64_t sequences = 1;      // at the same time
  std::int64_t context = 0;        // keys before every token, not counting the prompt
};

/// The time of a pass, and what limits it: "vram", "pcie", "disk", "ram", "compute"; empty if a rate is missing.
struct PassTime {
  double seconds = 0;
  const char* bound = "";
};
/// rows: the tokens of the pass; tokens of prompts if the work has prompts.
PassTime predict_pass(const Plan& plan, const Rates& rates, const Work& work, double rows);

/// Tokens per second of all sequences together; 0 if a rate is missing.
double predict_tokens_per_second(const Plan& plan, const Rates& rates, const Work& work);

}  // namespace millrace::residency

// The rates of an engine: those of the caller, otherwise those saved for this machine and the model's disk, completed
// by a short measurement if a plan's choice depends on an unknown rate (residency/brief.h). Thread-safety: one thread.
#pragma once

#include <string>

#include "engine/engine.h"
#include "engine/setup.h"

namespace millrace::engine {

/// The options with the rates saved for their model's disk, if they have no rates and allow it
/// (PlanningOptions::find_rates).
EngineOptions with_kept_rates(EngineOptions options);

/// The rates without those of any GPU other than this one.
residency::Rates rates_beside(const std::string& gpu, residency::Rates rates);

/// The memory that a measurement may take: on the host and, if one computes, on the GPU.
struct MeasuringRoom {
  std::uint64_t host_bytes = 0, device_bytes = 0;
  bool gpu = false;
};
/// Measures the rates that a plan of parts.model lacks, if the options allow it, and saves them for the next run. True:
/// parts.rates has new rates, and a plan made with them may differ. A rate that cannot be measured is logged.
/// REQUIRES: parts.model.
bool measure_rates(const EngineOptions& options, const MeasuringRoom& room, Parts& parts);

/// Saves the rates for the disk of `model_path`; logs a failure.
void keep_rates(const std::string& model_path, const residency::Rates& rates);

}  // namespace millrace::engine

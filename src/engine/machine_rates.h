// Where an engine's rates come from: those that the caller gave, or else those kept for this machine and the model's
// disk, completed by a short measurement where a plan's choice depends on what nobody measured (residency/brief.h).
// Thread-safety: one thread.
#pragma once

#include <string>

#include "engine/engine.h"
#include "engine/setup.h"

namespace millrace::engine {

/// The options, with the rates kept for the disk of their model where they have none and leave them open
/// (PlanningOptions::find_rates).
EngineOptions with_kept_rates(EngineOptions options);

/// The same rates, less those of another GPU than this one.
residency::Rates rates_beside(const std::string& gpu, residency::Rates rates);

/// Memory that measuring may take: of the host and, where one computes, of the GPU.
struct MeasuringRoom {
  std::uint64_t host_bytes = 0, device_bytes = 0;
  bool gpu = false;
};
/// Measures what a plan of parts.model lacks, if the options leave it open, and keeps it for the next run. True:
/// parts.rates has more than before, and a plan made with it may be another one. What cannot be measured is said in the
/// log. REQUIRES: parts.model.
bool measure_rates(const EngineOptions& options, const MeasuringRoom& room, Parts& parts);

/// Keeps them for the disk of `model_path`; why it cannot is said in the log.
void keep_rates(const std::string& model_path, const residency::Rates& rates);

}  // namespace millrace::engine

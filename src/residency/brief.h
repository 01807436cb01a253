// A short measurement of the rates that one model's plan depends on, for machines without `millrace calibrate`.
//
// engine/machine_rates.h runs it when an engine is opened (run, serve, bench, batch, plan, the C API), if a plan
// without rates has shown that a choice depends on them: weights of every pass are outside the fastest tier. A model
// that fits is placed without rates, and nothing is measured.
//
// It measures the disk (0.3 s), RAM and the CPU's products with each type that makes up a twentieth of the weights or
// more (0.1 s each), and with a GPU its memory, the link, both at once, and one large product. It starts the next of
// these only while kMostBriefSeconds, and the time that reading the model takes at the measured rate, have not passed;
// the others stay unknown. Known rates are not measured again.
//
// Such rates are marked (Rates::brief), are kept in the same file as those of calibrate(), never replace those, and are
// refined from real passes (engine/rates_keeper.h). Units are those of Rates: bytes, multiply-accumulates and seconds.
// Thread-safety: one measurement at a time; it touches no engine state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/kernels.h"
#include "residency/plan.h"
#include "storage/storage.h"

namespace millrace::residency {

constexpr double kMostBriefSeconds = 3;
/// Smaller models are not measured: they load faster than a measurement takes, and CPU caches hold much of them.
constexpr std::uint64_t kLeastBriefBytes = 256u << 20;

struct BriefOptions {
  bool gpu = false;                  // the current GPU computes, and the CPU beside it
  std::vector<TypeWeights> weights;  // the weights that the CPU computes with (type_rates.h)
  std::uint64_t model_bytes = 0;     // of weights
  std::vector<std::string> paths;    // the model's files
  storage::OpenOptions storage;      // how its engine reads them
  const kernels::Table* kernels = nullptr;
  int threads = 0;  // 0: all that this process may use
  // The most memory to measure with: of the host, and of the GPU.
  std::uint64_t host_bytes = 0, device_bytes = 0;
};

/// Whether a plan for such a model lacks a rate.
bool lacks_rates(const Rates& rates, const BriefOptions& options);

/// Returns `known` with its missing rates measured. A rate that cannot be measured (no O_DIRECT, too little memory)
/// stays unknown, with the reason in the log. Errors: not_found (the model's file is gone).
Expected<Rates> measure_briefly(const Rates& known, const BriefOptions& options);

}  // namespace millrace::residency

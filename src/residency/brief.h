// A short measurement: the rates that one model's plan depends on, where nobody ran `millrace calibrate`.
//
// engine/machine_rates.h asks for it when an engine is opened (run, serve, bench, batch, plan, the C API), once a plan
// without rates has shown that a choice depends on them: weights of every pass lie outside of the fastest tier. A model
// that fits is placed without rates, and nothing is measured.
//
// What is measured, and how long at most: the disk (0.3 s), RAM and the processor's products with each type that makes
// up a twentieth of the weights or more (0.1 s each), and with a GPU its memory, the link, both at once, and one large
// product. The next of these begins while kMostBriefSeconds are not over, nor the time that reading the model takes at
// the rate just measured; what there is no time for stays unknown. Rates that are known are not measured again.
//
// Such rates are marked (Rates::brief), are kept where calibrate() keeps its own, never take the place of those, and
// are refined from real passes (engine/rates_keeper.h). Units are those of Rates: bytes, multiply-accumulates and
// seconds. Thread-safety: one measurement at a time; none of it touches an engine's state.
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
/// Smaller models are loaded before anything could be measured, and processors' caches hold much of them.
constexpr std::uint64_t kLeastBriefBytes = 256u << 20;

struct BriefOptions {
  bool gpu = false;                  // the present one computes, the processor beside it
  std::vector<TypeWeights> weights;  // what the processor computes with (type_rates.h)
  std::uint64_t model_bytes = 0;     // of weights
  std::vector<std::string> paths;    // the model's files
  storage::OpenOptions storage;      // how its engine reads them
  const kernels::Table* kernels = nullptr;
  int threads = 0;  // 0: all that this process may use
  // Memory to measure with at most: of the host, and of the GPU.
  std::uint64_t host_bytes = 0, device_bytes = 0;
};

/// Does a plan for such a model lack a rate?
bool lacks_rates(const Rates& rates, const BriefOptions& options);

/// `known` and what it lacks. A part that cannot be measured (no O_DIRECT, too little memory) stays unknown, with the
/// reason in the log. Errors: not_found (the model's file is gone).
Expected<Rates> measure_briefly(const Rates& known, const BriefOptions& options);

}  // namespace millrace::residency

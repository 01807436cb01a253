// The types of a model's matrices that a file of so many bytes is best made of.
// Thread-safety: functions without shared state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/measure/groups.h"
#include "app/measure/mixture.h"
#include "app/measure/sensitivity.h"
#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::measure {

/// What each group (in the order of groups_of) may be: its own type, which costs nothing, first; then those that were
/// measured and take less. Without a sensitivity (null) divergence is taken to be what rounding takes away, by `types`.
/// Errors: invalid_argument (the sensitivity is of another model: names what is missing), io_error.
Expected<std::vector<std::vector<MixtureOption>>> mixture_options(const modelfile::Model& model,
                                                                  const Sensitivity* sensitivity,
                                                                  std::span<const DType> types, ThreadPool& pool);

struct ModelMixture {
  std::vector<std::pair<std::string, DType>> types;   // by tensor, of those that change
  std::vector<std::pair<std::string, DType>> groups;  // likewise, for people
  std::uint64_t file_bytes = 0;                       // at most
  double divergence = 0;                              // predicted: of all groups together
};

/// The best file within the limits, whose bytes count header and all.
/// Errors: as mixture_options and choose_mixture.
Expected<ModelMixture> best_mixture(const modelfile::Model& model, const Sensitivity* sensitivity,
                                    std::span<const DType> types, const MixtureLimits& limits, ThreadPool& pool);

}  // namespace millrace::measure

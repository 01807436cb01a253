// What quantizing each group of a model does to its distributions: KL divergence from the model as it is, in nats a
// token, for each type.
//
// Measuring each group in each type would take groups x types runs over the text. What is run instead:
//   * the reference, whose logits are kept on the disk;
//   * each group in two types (the probes: the coarsest, and one in the middle), everything else as it is;
//   * each type once, with every group in it.
// A group's divergence in another type is taken to go as a power of what rounding to it takes away of the group's
// weights (rounding_error, which needs no run). In types finer than both probes that is the first power: perturbations
// are small there, and divergence is quadratic in them. In coarser ones it is the power that the two probes show. Each
// type has a factor, so that the groups' sum is what the run with all groups in that type gave: it holds what the law
// and the sum leave out. Of a group's runs the mean is taken with single tokens capped (Divergence::capped): the few
// that a router or a tie decides otherwise are as many as chance has it, and a mean of some thousand tokens is theirs.
// `checks` further pairs of group and type are run, spread over both, to tell how far that is off. A group's run reads
// a file with that group alone, laid over the model (modelfile/overlay.h). Thread-safety: one thread, which is the
// engines'.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/measure/groups.h"
#include "app/measure/text_windows.h"
#include "base/status.h"
#include "engine/engine.h"

namespace millrace::measure {

struct GroupSensitivity {
  std::string name;
  std::vector<std::string> tensors;
  std::vector<double> divergence;  // by type
  std::vector<double> probed;      // by probe: as it was measured, capped
};

struct Sensitivity {
  std::string model;  // its name, for people
  std::int64_t tokens = 0;
  double perplexity = 0;  // of the reference
  std::vector<DType> types;
  std::vector<DType> probes;   // one or two, of `types`, in their order
  std::vector<double> of_all;  // by type, measured: with every group in it
  std::vector<GroupSensitivity> groups;
  std::int64_t runs = 0;
  std::int64_t checks = 0;
  double check_factor = 1;  // by so much pairs that were run differ from what is predicted of them, on average (>= 1)
};

/// An engine over the model with a file laid over it; empty: none.
using EngineFactory = std::function<Expected<std::unique_ptr<engine::Engine>>(const std::string& overlay)>;

struct SensitivityOptions {
  std::vector<DType> types;  // candidates, any order
  int checks = 0;
  int threads = 0;
  std::string scratch;  // files of this name and an ending are written there, and go again
  const modelfile::ImportanceMatrix* importance = nullptr;  // by which weights are quantized; null: all columns alike
  const std::atomic<bool>* cancel = nullptr;
  /// Tokens of all runs that are done, and a word on the present one.
  std::function<void(std::int64_t done, std::int64_t total, const std::string& what)> progress = {};
};

/// Errors: invalid_argument (no type that can be written), those of engines, runs and files; cancelled.
Expected<Sensitivity> measure_sensitivity(const modelfile::Model& model, const TextWindows& windows,
                                          const EngineFactory& make, const SensitivityOptions& options);

/// What is chosen from where nobody names types: those of which none is both larger and worse than another, also for
/// rows that are not whole super-blocks.
std::vector<DType> measured_types();

/// A group's divergence in a type (by index), as it was measured.
struct Probe {
  std::size_t type = 0;
  double divergence = 0;
};
/// Divergences of a group in all types, by its probes (one, or two of which the first rounds more) and rounding errors.
std::vector<double> extrapolate(std::span<const Probe> probes, const std::vector<double>& rounding);

constexpr std::uint64_t kMostSensitivityBytes = 16u << 20;
std::string sensitivity_to_json(const Sensitivity& found);
/// Errors: corrupt (what is wrong; made by sensitivity_to_json it is not).
Expected<Sensitivity> parse_sensitivity(std::string_view json);

}  // namespace millrace::measure

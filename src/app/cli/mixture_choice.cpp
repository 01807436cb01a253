#include "app/cli/mixture_choice.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "app/measure/model_mixture.h"
#include "app/measure/sensitivity.h"
#include "base/bytes.h"
#include "base/thread_pool.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

Expected<measure::Sensitivity> read_sensitivity(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, residency::read_small_file(path, measure::kMostSensitivityBytes));
  auto found = measure::parse_sensitivity(text);
  if (!found.ok()) return found.status().with_context(path);
  return found;
}

/// The first named type of what most of the mixture's weights have; Q8_0 where there is none.
modelfile::QuantizeType main_type(const modelfile::Model& model, const measure::ModelMixture& mixture) {
  std::map<DType, std::int64_t> weights;
  for (const auto& [name, dtype] : mixture.types) weights[dtype] += model.find(name)->cols() * model.find(name)->rows();
  const auto most = std::max_element(weights.begin(), weights.end(),
                                     [](const auto& one, const auto& other) { return one.second < other.second; });
  if (most != weights.end())
    for (const auto& known : modelfile::quantize_types())
      if (known.main == most->first) return known.type;
  return modelfile::QuantizeType::q8_0;
}

void print(const measure::ModelMixture& mixture, bool measured) {
  std::map<DType, std::string> groups;
  for (const auto& [group, dtype] : mixture.groups) groups[dtype] += (groups[dtype].empty() ? "" : ", ") + group;
  for (const auto& [dtype, names] : groups) fmt::print("{:6} {}\n", info(dtype).name, names);
  if (measured) fmt::print("predicted KL divergence: {:.3g} nats a token\n", mixture.divergence);
}

}  // namespace

void add_mixture_flags(CLI::App& command, MixtureFlags& flags) {
  command.add_option("--bytes", flags.bytes,
                     "Instead of a type: choose types for the best file of this size, for example 12G");
  command
      .add_option("--divergence", flags.divergence,
                  "Instead of a type: choose types for the smallest file (the fastest, if weights stream) within this "
                  "predicted divergence in nats per token, for example 0.001")
      ->check(CLI::NonNegativeNumber)
      ->option_text("NATS");
  command.add_option("--sensitivity", flags.sensitivity,
                     "Output of `millrace sensitivity` for this model (default: estimated from rounding errors)");
}

Status check(const MixtureFlags& flags) {
  if (!flags.sensitivity.empty() && !flags.chooses())
    return error(Code::invalid_argument, "--sensitivity chooses types for --bytes or --divergence; give one, too");
  if (flags.divergence && flags.sensitivity.empty())
    return error(Code::invalid_argument, "--divergence needs --sensitivity: `millrace sensitivity` measures it");
  return {};
}

Status choose_types(const MixtureFlags& flags, int threads, const modelfile::Model& model,
                    modelfile::QuantizeOptions& options) {
  measure::MixtureLimits limits{.divergence = flags.divergence};
  if (!flags.bytes.empty()) {
    const auto bytes = parse_bytes(flags.bytes);
    if (!bytes.ok()) return bytes.status().with_context("--bytes");
    limits.bytes = *bytes;
  }
  std::optional<measure::Sensitivity> sensitivity;
  if (!flags.sensitivity.empty()) {
    MR_ASSIGN_OR_RETURN(sensitivity, read_sensitivity(flags.sensitivity));
  }
  ThreadPool pool({.threads = threads, .pin = false});
  MR_ASSIGN_OR_RETURN(
      const measure::ModelMixture mixture,
      measure::best_mixture(model, sensitivity ? &*sensitivity : nullptr, measure::measured_types(), limits, pool));
  for (const auto& [name, dtype] : mixture.types) options.types.emplace(name, dtype);
  options.type = main_type(model, mixture);
  print(mixture, sensitivity.has_value());
  return {};
}

}  // namespace millrace::cli

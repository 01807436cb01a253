#include "app/measure/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

#include "app/measure/logits_file.h"
#include "app/measure/quality.h"
#include "tensor/codec.h"

namespace millrace::measure {
namespace {

double bits_of(DType dtype) {
  return 8.0 * static_cast<double>(info(dtype).block_bytes) / static_cast<double>(info(dtype).block_elements);
}

/// The runs of one measurement, and the files that they need.
class Runs {
 public:
  Runs(const modelfile::Model& model, const TextWindows& windows, const EngineFactory& make,
       const SensitivityOptions& options, std::int64_t count)
      : model_(model),
        windows_(windows),
        make_(make),
        options_(options),
        pool_({.threads = options.threads, .pin = false}),
        tokens_(windows.size() * (windows.options().context - 1)),
        total_(count * tokens_) {}
  ~Runs() {
    std::remove(overlay_path().c_str());
    std::remove(reference_path().c_str());
  }
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  ThreadPool& pool() { return pool_; }
  std::int64_t done() const { return done_ / tokens_; }

  /// Keeps the model's own logits; its perplexity.
  Expected<Perplexity> reference() {
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, make_(""));
    const auto& hp = engine->model().hyperparameters();
    MR_ASSIGN_OR_RETURN(
        LogitsWriter writer,
        LogitsWriter::create(reference_path(), shape_of(windows_, engine->tokenizer(), hp.vocab, hp.name)));
    Quality quality(windows_.rows(), options_.threads, nullptr, &writer);
    MR_RETURN_IF_ERROR(run(*engine, quality, "reference"));
    MR_RETURN_IF_ERROR(writer.finish());
    return quality.perplexity();
  }

  /// With these groups in that type.
  Expected<Divergence> divergence(std::span<const Group* const> groups, DType dtype, const std::string& what) {
    MR_RETURN_IF_ERROR(
        write_overlay(model_, groups, dtype, overlay_path(), pool_.threads(), options_.cancel, options_.importance));
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, make_(overlay_path()));
    MR_ASSIGN_OR_RETURN(LogitsReader reader, LogitsReader::open(reference_path()));
    Quality quality(windows_.rows(), options_.threads, &reader, nullptr);
    MR_RETURN_IF_ERROR(run(*engine, quality, fmt::format("{} in {}", what, info(dtype).name)));
    return quality.divergence();
  }

 private:
  std::string overlay_path() const { return options_.scratch + ".overlay"; }
  std::string reference_path() const { return options_.scratch + ".logits"; }

  Status run(engine::Engine& engine, Quality& quality, const std::string& what) {
    RunOptions options;
    options.cancel = options_.cancel;
    options.progress = [&](std::int64_t done, std::int64_t) {
      if (options_.progress) options_.progress(done_ + done, total_, what);
    };
    const auto add = [&](std::int64_t row, text::TokenId target, std::span<const float> logits) {
      return quality.add(row, target, logits);
    };
    MR_RETURN_IF_ERROR(run_windows(engine, windows_, add, options));
    done_ += tokens_;
    return {};
  }

  const modelfile::Model& model_;
  const TextWindows& windows_;
  const EngineFactory& make_;
  const SensitivityOptions& options_;
  ThreadPool pool_;
  const std::int64_t tokens_, total_;  // of prompts: of a run, of all
  std::int64_t done_ = 0;
};

/// The types in ascending bits. Errors: invalid_argument.
Expected<std::vector<DType>> checked_types(std::vector<DType> types) {
  for (const DType dtype : types)
    if (!can_encode(dtype) || dtype == DType::f32)
      return error(Code::invalid_argument, "no weights are quantized to {}; name others", info(dtype).name);
  std::sort(types.begin(), types.end(), [](DType one, DType other) {
    return bits_of(one) != bits_of(other) ? bits_of(one) < bits_of(other) : one < other;
  });
  types.erase(std::unique(types.begin(), types.end()), types.end());
  if (types.empty()) return error(Code::invalid_argument, "name a type to measure");
  return types;
}

/// Runs some pairs of group and type, and tells by which factor the predictions are off, on average.
/// `tails`: by type, what the mean of a run is over its capped one.
Status check(Runs& runs, const std::vector<Group>& groups, std::int64_t count, const std::vector<double>& tails,
             Sensitivity& found) {
  double logs = 0;
  std::int64_t compared = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto g = static_cast<std::size_t>(i) * groups.size() / static_cast<std::size_t>(count);
    std::size_t t = static_cast<std::size_t>(i) % found.types.size();
    while (std::find(found.probes.begin(), found.probes.end(), found.types[t]) != found.probes.end())
      t = (t + 1) % found.types.size();
    const Group* const group = &groups[g];
    MR_ASSIGN_OR_RETURN(const Divergence run, runs.divergence(std::span(&group, 1), found.types[t], group->name));
    const double measured = run.capped * tails[t], predicted = found.groups[g].divergence[t];
    if (measured <= 0 || predicted <= 0) continue;
    logs += std::fabs(std::log(predicted / measured));
    ++compared;
  }
  found.checks = compared;
  if (compared > 0) found.check_factor = std::exp(logs / static_cast<double>(compared));
  return {};
}

}  // namespace

std::vector<double> extrapolate(std::span<const Probe> probes, const std::vector<double>& rounding) {
  const Probe &coarse = probes.front(), &fine = probes.back();
  const double from = rounding[fine.type];
  double power = 1;
  if (from > 0 && rounding[coarse.type] > from && fine.divergence > 0 && coarse.divergence > 0)
    power =
        std::clamp(std::log(coarse.divergence / fine.divergence) / std::log(rounding[coarse.type] / from), 0.5, 3.0);
  std::vector<double> divergence(rounding.size());
  for (std::size_t t = 0; t < rounding.size(); ++t) {
    const double growth = from > 0 ? rounding[t] / from : 0;
    divergence[t] = fine.divergence * (growth > 1 ? std::pow(growth, power) : growth);
  }
  for (const Probe& probe : probes) divergence[probe.type] = probe.divergence;
  return divergence;
}

std::vector<DType> measured_types() {
  return {DType::iq2_xxs, DType::iq2_s, DType::q2_k, DType::iq3_xxs, DType::q3_k, DType::iq4_xs,
          DType::iq4_nl,  DType::q4_k,  DType::q5_0, DType::q5_k,    DType::q6_k, DType::q8_0};
}

Expected<Sensitivity> measure_sensitivity(const modelfile::Model& model, const TextWindows& windows,
                                          const EngineFactory& make, const SensitivityOptions& options) {
  Sensitivity found;
  MR_ASSIGN_OR_RETURN(found.types, checked_types(options.types));
  std::vector<std::size_t> probes = {0};
  if (found.types.size() > 2) probes.push_back((found.types.size() - 1) / 2);
  for (const std::size_t probe : probes) found.probes.push_back(found.types[probe]);
  const std::vector<Group> groups = groups_of(model);
  if (groups.empty()) return error(Code::invalid_argument, "this model has no matrices to quantize");
  const std::int64_t checks = found.types.size() > probes.size() ? options.checks : 0;
  Runs runs(model, windows, make, options,
            1 + std::ssize(groups) * std::ssize(probes) + std::ssize(found.types) + checks);
  MR_ASSIGN_OR_RETURN(const Perplexity reference, runs.reference());
  found.perplexity = reference.value;
  found.tokens = reference.tokens;
  found.model = model.get_string("general.name").ok() ? *model.get_string("general.name") : std::string();

  std::vector<double> sums(found.types.size());
  std::vector<const Group*> all;
  for (const Group& group : groups) {
    all.push_back(&group);
    std::vector<double> rounding;
    for (const DType dtype : found.types) {
      MR_ASSIGN_OR_RETURN(const double lost, rounding_error(model, group, dtype, runs.pool(), options.importance));
      rounding.push_back(lost);
    }
    GroupSensitivity of_group{.name = group.name, .tensors = {}, .divergence = {}, .probed = {}};
    for (const modelfile::TensorInfo* tensor : group.tensors) of_group.tensors.push_back(tensor->name);
    std::vector<Probe> probed;
    for (const std::size_t probe : probes) {
      MR_ASSIGN_OR_RETURN(const Divergence measured,
                          runs.divergence(std::span(&all.back(), 1), found.types[probe], group.name));
      probed.push_back({probe, measured.capped});
      of_group.probed.push_back(measured.capped);
    }
    of_group.divergence = extrapolate(probed, rounding);
    for (std::size_t t = 0; t < sums.size(); ++t) sums[t] += of_group.divergence[t];
    found.groups.push_back(std::move(of_group));
  }
  std::vector<double> tails;
  for (std::size_t t = 0; t < found.types.size(); ++t) {
    MR_ASSIGN_OR_RETURN(const Divergence of_all, runs.divergence(all, found.types[t], "all"));
    found.of_all.push_back(of_all.mean);
    tails.push_back(of_all.capped > 0 ? of_all.mean / of_all.capped : 1);
    for (GroupSensitivity& group : found.groups)
      if (sums[t] > 0) group.divergence[t] *= of_all.mean / sums[t];
  }
  MR_RETURN_IF_ERROR(check(runs, groups, checks, tails, found));
  found.runs = runs.done();
  return found;
}

}  // namespace millrace::measure

// Learns which experts a user's traffic calls for: reads what earlier runs of a model left (residency/expert_usage.h),
// and adds what this one counts, every few minutes and at its end. Several processes may add to one file.
// Thread-safety: one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "residency/expert_usage.h"

namespace millrace::engine {

class UsageKeeper {
 public:
  static constexpr std::chrono::minutes kEvery{5};

  /// For the model that options name, its usage in the folder that they name. A file that is of no use is said in the
  /// log, and what is learned takes its place. Null: nothing is to be learned, because the options name no folder, or
  /// routers do not choose as the traffic would have them; or the log says why it cannot be.
  static std::unique_ptr<UsageKeeper> open(const EngineOptions& options, const residency::UnitTable& units);

  /// StoreOptions::expected.
  std::vector<float> expected() const { return residency::usage_by_unit(units_, known_); }

  /// Adds what has been counted since the last time, now or if kEvery has passed. A file that cannot be written is said
  /// once, and no more is tried.
  using Count = std::function<residency::ExpertUsage()>;  // since the start
  void save(const Count& count);
  void save_in_time(const Count& count);

 private:
  UsageKeeper(const residency::UnitTable& units, std::string path, std::string model)
      : units_(units), path_(std::move(path)), model_(std::move(model)), saved_(residency::no_usage(units)) {}
  residency::ExpertUsage read() const;

  const residency::UnitTable& units_;
  const std::string path_, model_;
  residency::ExpertUsage known_;  // when the run began
  residency::ExpertUsage saved_;  // of this run's
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  bool failed_ = false;
};

}  // namespace millrace::engine

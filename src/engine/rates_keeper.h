// Refines rates that were measured briefly or not at all: compares the counters of executor and storage with the
// predictions for the same passes. The next run plans with the refined rates. Rates from `millrace calibrate` are not
// changed. Thread-safety: one thread, which runs the passes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/setup.h"
#include "exec/executor.h"
#include "residency/refine.h"
#include "storage/storage.h"

namespace millrace::engine {

class RatesKeeper {
 public:
  /// Null: the run's rates were calibrated or given or must not be saved, or its model is too small to tell.
  static std::unique_ptr<RatesKeeper> open(const EngineOptions& options, const Parts& parts);

  /// After each step of the engine.
  void stepped();
  /// Saves the current rates. Logs a failure to write the file.
  void save() const;

 private:
  RatesKeeper(std::string path, const Parts& parts) : path_(std::move(path)), parts_(parts) {}

  const std::string path_;  // the model's
  const Parts& parts_;
  exec::ExecCounters seen_;
  storage::Counters disk_seen_;
  residency::DecodePasses passes_;
};

}  // namespace millrace::engine

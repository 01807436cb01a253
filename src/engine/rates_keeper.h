// Refines rates that were measured briefly, or not at all, by the passes of a run: what the executor and storage
// counted beside what the rates say of the same passes. The next run plans with them. Rates that `millrace calibrate`
// measured stay as they are. Thread-safety: one thread, which runs the passes.
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
  /// Null: the run's rates were calibrated, given or are not to be kept, or its model says nothing about larger ones.
  static std::unique_ptr<RatesKeeper> open(const EngineOptions& options, const Parts& parts);

  /// After each step of the engine.
  void stepped();
  /// Keeps what is known now. A file that cannot be written is said in the log.
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

// Measures the cost of decoding from the engine's counters, between points that the caller marks while it steps the
// engine.
// Thread-safety: the thread that runs the passes.
#pragma once

#include <chrono>

#include "engine/engine.h"

namespace millrace::engine {

class DecodeMeter {
 public:
  /// `engine` outlives the meter.
  explicit DecodeMeter(const Engine& engine) : engine_(engine) {}

  /// Marks the start of decoding.
  void begin() {
    begin_ = reached_ = now();
    tokens_ = 0;
  }
  /// So far all went to decoding, which gave `tokens` since begin(). May be called again and again.
  void reached(std::int64_t tokens) {
    reached_ = now();
    tokens_ = tokens;
  }
  /// Adds what lies between begin() and the last reached() to the cost.
  void end();

  const residency::DecodeCost& cost() const { return cost_; }

 private:
  struct Reading {
    std::chrono::steady_clock::time_point time;
    residency::StoreCounters store;
    storage::Counters disk;
  };
  Reading now() const;

  const Engine& engine_;
  Reading begin_, reached_;
  std::int64_t tokens_ = 0;
  residency::DecodeCost cost_;
};

}  // namespace millrace::engine

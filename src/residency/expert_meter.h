// What experts do in a store, by layer and by pass: the figures by which a mixture's memory is judged.
// Not thread-safe: the store's mutex guards it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "residency/expert_usage.h"
#include "residency/unit.h"

namespace millrace::residency {

struct LayerCounters {
  std::uint64_t hits = 0, misses = 0;  // uses of experts whose bytes were there or on their way, and of others
  std::uint64_t evictions = 0;
  std::uint32_t resident = 0;  // experts in slots now
  // Distinct experts used in one pass, and in kManyPasses of them on end, at most.
  std::uint32_t working_set = 0, long_working_set = 0;
};

struct ExpertFigures {
  static constexpr int kManyPasses = 32;

  std::vector<LayerCounters> layers;  // all zero where a layer has no experts
  std::uint64_t cold_misses = 0;      // of the first pass that used experts
  std::uint64_t most_misses = 0;      // of any pass behind it
  double steady_misses = 0;           // of a pass, lately: each counts for less with every pass since
  // Read ahead because earlier traffic used them (StoreOptions::expected), and of these, used while they were there.
  std::uint64_t learned = 0, learned_used = 0;

  bool any() const { return !layers.empty(); }
  LayerCounters total() const;  // the working sets: of the layer with the largest
  /// "12.4 misses a pass (cold 96, at most 41); a layer uses 8 in a pass and 61 in 32 of them at most; 512 in slots":
  /// one line for people.
  std::string describe() const;
};

class ExpertMeter {
 public:
  explicit ExpertMeter(const UnitTable& units);

  void begin_pass();
  /// missed: its bytes were neither there nor on their way. REQUIRES: the unit is an expert, as in all below.
  void used(std::int32_t unit, bool missed);
  void came(std::int32_t unit) { ++layer_of(unit).resident; }
  void left(std::int32_t unit);
  /// Read ahead because it was learned to be used; so it was.
  void read_learned() { ++figures_.learned; }
  void used_learned() { ++figures_.learned_used; }
  const ExpertFigures& figures() const { return figures_; }
  /// Since the start; the present pass counts for its experts already.
  const ExpertUsage& usage() const { return usage_; }

 private:
  LayerCounters& layer_of(std::int32_t unit) {
    return figures_.layers[static_cast<std::size_t>(units_.units()[static_cast<std::size_t>(unit)].layer)];
  }
  void end_pass();

  const UnitTable& units_;
  ExpertFigures figures_;
  std::uint32_t pass_ = 0;
  std::vector<std::uint32_t> last_pass_;                 // by unit: that used it
  std::vector<std::uint32_t> distinct_, distinct_long_;  // by layer: in this pass, in these kManyPasses
  std::uint64_t misses_ = 0;                             // of this pass
  ExpertUsage usage_;
  bool used_any_ = false, was_cold_ = true;
};

}  // namespace millrace::residency

// The plan of a model on the CPU: chooses limits from the budget and reduces them until weights, KV and activations fit
// together. Thread-safety: one thread.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/limits.h"
#include "engine/setup.h"
#include "kv/layout.h"

namespace millrace::engine {

/// The default tile size for a budget.
std::uint64_t automatic_tile(std::uint64_t ram_bytes);
/// Whether storage maps the file, so that the whole model counts.
bool is_mapped(const Parts& parts);

class CpuPlanner {
 public:
  /// parts: with model, tile size, threads and storage; they outlive the object. program_bytes: measured.
  CpuPlanner(const EngineOptions& options, std::uint64_t ram_bytes, std::uint64_t program_bytes, Parts& parts);

  /// Whether a mapped model, which counts as a whole, fits with the widest limits of this budget.
  bool room_to_map() const;
  /// The memory for the samplers of all sequences, if they look at all tokens.
  std::uint64_t sampler_bytes() const;
  /// Writes limits, plan options and plan to the parts. Errors: out_of_budget (names the smallest --ram that works).
  Status plan();

 private:
  Status plan_once();
  Status plan_at_home();
  Status plan_weights();
  Status fit_front();
  Status try_limits(std::uint64_t spread);
  Status make_plan(std::int64_t kv_tokens, std::uint64_t program_bytes);
  void set_plan_options(std::int64_t kv_tokens, std::uint64_t program_bytes);
  Status recut(std::uint64_t tile_bytes);
  Limits roomy_limits() const;
  LimitRules rules() const;
  std::int64_t wanted_rows() const;
  std::int64_t logit_rows(const Limits& limits) const;
  std::uint64_t activation_bytes(const Limits& limits, std::int64_t logit_rows) const;
  std::uint64_t fixed_bytes(const Limits& limits, std::uint64_t program_bytes) const;
  std::uint64_t message_bytes(const Limits& limits) const;
  std::uint64_t kv_bytes(const kv::Load& load) const { return kv::most_bytes(layout_, load, device::kPageBytes); }
  std::int64_t affordable_context(std::uint64_t bytes, std::int64_t sequences, std::int64_t most) const;

  const EngineOptions options_;
  Demand demand_;
  const std::uint64_t ram_, program_bytes_;
  Parts& parts_;
  const kv::Layout layout_;
  const bool shares_out_;
  int front_layers_ = 0;            // PlanOptions::front_layers
  const std::uint64_t tile_bytes_;  // to begin with
};

}  // namespace millrace::engine

// One model on several ranks, each with a stage of its layers in its own memory: how rank 0 opens it with the others,
// and what the others do until rank 0 ends. Rank 0 chooses context, rows and KV format; each rank reports what it has
// room for, and the smallest limits apply to all, so that a pass that fits on rank 0 fits everywhere.
//
// Switched off, with a line in the log: the prefix cache and the prompt cache if layers have windows or states or KV
// has few bits; packs of experts. Refused: drafters other than n-grams, routing from files, saved plans. Thread-safety:
// one model at a time is open; calls for it come from one thread at a time.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/setup.h"
#include "link/link.h"

namespace millrace::engine {

/// The ranks that compute with this process, which is rank 0.
struct Cluster {
  explicit Cluster(link::Link& others, std::string stages_asked = {}) : link(others), stages(std::move(stages_asked)) {}

  link::Link& link;
  std::string stages;              // "0-10,11-21": layers by rank; empty: shared out (engine/share_layers.h)
  std::atomic<bool> taken{false};  // a model is open
};

/// Checks that a rank can compute with these options. Errors: unsupported (names what does not work over several
/// processes).
Status check_cluster_options(const EngineOptions& options);

/// assemble() for rank 0's stage, with an executor that spans all ranks. Errors: those of assemble() on this rank or on
/// another, which is named; unavailable (a model is open already); unsupported (see above).
Expected<Parts> assemble_cluster(const EngineOptions& options);

/// Runs every other rank: opens its stage when rank 0 opens the model, and computes until rank 0 ends. `options`: those
/// of this rank; rank 0 overrides context, rows and KV. Rank 0 receives an error when it opens a model. Errors:
/// io_error (the link broke).
Status follow(link::Link& link, const Expected<EngineOptions>& options);

}  // namespace millrace::engine

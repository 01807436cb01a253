// One model on several ranks, each with a stage of its layers in its own memory: how rank 0 opens it with the others,
// and what these do until rank 0 ends. Rank 0 leads: it says which context, rows and KV a run has; each rank says what
// it has room for, and the least of all holds for every one. Then a pass that rank 0 has room for has room everywhere.
//
// Off, with a word in the log: beginnings that requests share and the prompt cache, where layers have windows or keep a
// state or KV has few bits; packs of experts. Refused:
// drafters other than n-grams, routing from files, saved plans.
// Thread-safety: one model at a time is open; calls for it come from one thread at a time.
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

/// Whether a rank may compute with such options. Errors: unsupported (what does not work over several processes).
Status check_cluster_options(const EngineOptions& options);

/// assemble() of rank 0's stage, with an executor that goes through all ranks. Errors: those of assemble(), of this
/// rank or of another, which is named; unavailable (a model is open already); unsupported (see above).
Expected<Parts> assemble_cluster(const EngineOptions& options);

/// What every other rank does: opens its stage when rank 0 does, and computes, until rank 0 ends. `options`: this
/// rank's own, of which context, rows and KV are rank 0's to say; an error is what rank 0 hears when it opens a model.
/// Errors: io_error (the link broke).
Status follow(link::Link& link, const Expected<EngineOptions>& options);

}  // namespace millrace::engine

// Which runs of a pass's rows go over which blocks of states: the tables that kernels/gpu/recurrent.h takes. Nothing
// of a sequence changes before the pass is believed: what its rows leave goes to its next state, and to the checkpoints
// that they go by (kv/sequence.h). Between windows of a pass its next state is what goes on.
// Pure: needs no GPU, and is tested without one. Thread-safety: so from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/gpu/recurrent.h"
#include "kv/sequence.h"

namespace millrace::exec {

/// Rows of a pass that are worked at once.
struct RowSpan {
  std::int64_t first = 0, rows = 0;
};

/// The runs of a window's rows over the states of one group.
struct StateTable {
  std::size_t first_run = 0, first_of_sequences = 0;  // in StateRunTables::runs and first_runs
  std::int32_t runs = 0, sequences = 0;               // room for so many: behind those that are there are empty ones
  bool borders = false;                               // some sequence may have more than one run
};

struct StateRunTables {
  std::vector<StateTable> tables;  // of each window in order, one for each group with states
  std::vector<kernels::gpu::StateRun> runs;
  std::vector<std::int32_t> first_runs;
  bool repeat = true;  // `tables` are those of every pass with as many rows in each window, and as many sequences
};

/// Runs of one group in a window of so many rows of so many sequences, at most.
std::int64_t most_state_runs(std::int64_t rows, std::int64_t sequences);

/// Keeps the memory of `tables`. REQUIRES: the windows are all rows, in order. Errors: internal (a sequence is not
/// where its rows go on, or has no room for them).
Status make_state_runs(const kv::Batch& batch, std::span<const RowSpan> windows, StateRunTables& tables);

}  // namespace millrace::exec

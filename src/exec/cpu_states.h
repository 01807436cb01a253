// Rows of a pass as layers with a state take them: what the files of the CPU executor that work on states share.
#pragma once

#include <cstdint>

#include "exec/cpu_executor.h"

namespace millrace::exec {

/// Rows of a sequence that end behind its last row of the pass, or at a checkpoint.
struct CpuExecutor::StateRun {
  static constexpr std::int64_t kSequence = -1;

  std::int64_t first_row = 0, rows = 0;
  const kv::SequenceState* sequence = nullptr;
  // The state before and behind them: behind which block, or the sequence's own.
  std::int64_t from = kSequence, to = kSequence;

  const float* before(std::int64_t layer) const {
    return from == kSequence ? sequence->state(layer) : sequence->checkpoint(from, layer);
  }
  float* after(std::int64_t layer) const {
    return to == kSequence ? sequence->next_state(layer) : sequence->checkpoint(to, layer);
  }
};

}  // namespace millrace::exec

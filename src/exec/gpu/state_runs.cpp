#include "exec/gpu/state_runs.h"

#include <algorithm>

namespace millrace::exec {
namespace {

using kernels::gpu::StateRun;

const kv::SequenceState& sequence_of(const kv::Batch& batch, const kv::BatchRow& row) {
  return *batch.sequences[static_cast<std::size_t>(row.sequence)];
}

Status check_rows(const kv::Batch& batch) {
  for (std::size_t r = 0; r < batch.rows.size(); ++r) {
    const kv::BatchRow& row = batch.rows[r];
    const kv::SequenceState& sequence = sequence_of(batch, row);
    const bool is_first = r == 0 || batch.rows[r - 1].sequence != row.sequence;
    if (is_first && row.position != sequence.length())
      return error(Code::internal, "row {} goes on at {} from a state behind {} tokens", r, row.position,
                   sequence.length());
    if (!sequence.holds(row.position))
      return error(Code::internal, "row {} of the pass has no room at position {}", r, row.position);
  }
  return {};
}

/// Of the rows [first, end) of one sequence in a window, cut at the borders of its blocks.
void add_sequence(const kv::Batch& batch, const RowSpan& window, std::size_t group, std::int64_t first,
                  std::int64_t end, std::vector<StateRun>& runs) {
  const kv::BatchRow& row = batch.rows[static_cast<std::size_t>(first)];
  const kv::SequenceState& sequence = sequence_of(batch, row);
  const bool begins = row.position == sequence.length();  // else a window of this pass has been at it
  StateRun run;
  run.before = begins ? sequence.state_block(group) : sequence.next_state_block(group);
  run.sequence_row = static_cast<std::int32_t>(first - window.first);
  const std::size_t first_run = runs.size();
  for (std::int64_t at = first; at < end; at += run.rows) {
    const std::int64_t position = row.position + (at - first);
    run.first_row = static_cast<std::int32_t>(at - window.first);
    run.rows = static_cast<std::int32_t>(std::min(end - at, kv::kBlockTokens - position % kv::kBlockTokens));
    const std::int64_t behind = position + run.rows;
    run.after = behind % kv::kBlockTokens == 0 ? sequence.block(group, behind / kv::kBlockTokens - 1) : nullptr;
    runs.push_back(run);
  }
  if (runs.back().after != nullptr) {  // a checkpoint, and what goes on
    run.first_row = static_cast<std::int32_t>(end - window.first);
    run.rows = 0;
    runs.push_back(run);
  }
  runs.back().after = sequence.next_state_block(group);
  const bool several = runs.size() - first_run > 1;
  for (std::size_t i = first_run; i < runs.size(); ++i) runs[i].sequence_has_more = several ? 1 : 0;
}

/// only: the pass has no other window.
void add_window(const kv::Batch& batch, const RowSpan& window, bool only, std::size_t group, StateRunTables& to) {
  const std::int64_t end = window.first + window.rows;
  const auto sequence_at = [&](std::int64_t row) { return batch.rows[static_cast<std::size_t>(row)].sequence; };
  StateTable table;
  table.first_run = to.runs.size();
  table.first_of_sequences = to.first_runs.size();
  const auto made = [&] { return std::ssize(to.runs) - static_cast<std::int64_t>(table.first_run); };
  for (std::int64_t first = window.first, next = first; first < end; first = next) {
    while (next < end && sequence_at(next) == sequence_at(first)) ++next;
    to.first_runs.push_back(static_cast<std::int32_t>(made()));
    add_sequence(batch, window, group, first, next, to.runs);
  }
  // With a row of each sequence each has one run, but where a checkpoint is wanted right behind it.
  const bool as_many = only && window.rows == std::ssize(batch.sequences);
  const bool singles =
      as_many && std::ssize(to.first_runs) - static_cast<std::int64_t>(table.first_of_sequences) == window.rows;
  if (as_many && !singles) to.repeat = false;
  const std::int64_t sequences = std::min(window.rows, std::ssize(batch.sequences));
  const std::int64_t most = singles ? window.rows : most_state_runs(window.rows, sequences);
  table.borders = !singles || made() > most;
  if (made() > most) to.repeat = false;
  table.runs = static_cast<std::int32_t>(std::max(made(), most));
  table.sequences = static_cast<std::int32_t>(sequences);
  to.first_runs.resize(table.first_of_sequences + static_cast<std::size_t>(sequences) + 1,
                       static_cast<std::int32_t>(made()));
  to.runs.resize(table.first_run + static_cast<std::size_t>(table.runs));
  to.tables.push_back(table);
}

}  // namespace

/// A sequence's rows are cut at the borders of its blocks; where they end at one there may be a run without rows more.
std::int64_t most_state_runs(std::int64_t rows, std::int64_t sequences) {
  return std::min(2 * rows, rows / kv::kBlockTokens + 3 * std::min(rows, sequences));
}

Status make_state_runs(const kv::Batch& batch, std::span<const RowSpan> windows, StateRunTables& tables) {
  tables.tables.clear();
  tables.runs.clear();
  tables.first_runs.clear();
  tables.repeat = true;
  if (batch.sequences.empty() || !batch.sequences.front()->layout().has_states()) return {};
  MR_RETURN_IF_ERROR(check_rows(batch));
  const std::vector<kv::Group>& groups = batch.sequences.front()->layout().groups();
  for (const RowSpan& window : windows)
    for (std::size_t g = 0; g < groups.size(); ++g)
      if (groups[g].is_state()) add_window(batch, window, windows.size() == 1, g, tables);
  return {};
}

}  // namespace millrace::exec

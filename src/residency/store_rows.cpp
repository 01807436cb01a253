// Single rows of a part, without a lease: from memory where their tile lies there, else from the file.
#include <cstring>

#include "base/bytes.h"
#include "base/mutex.h"
#include "residency/store.h"

namespace millrace::residency {

/// Where the row lies in memory now, or nullptr. The mutex is held.
const std::byte* Store::present_row(WeightRef ref, std::int64_t row) const {
  const auto range = units_.tiles_of(ref.unit);
  for (std::int32_t t = range.first; t < range.last; ++t) {
    if (tiles_[t].status != TileStatus::ready) continue;
    const Tile& tile = units_.tiles()[t];
    for (std::size_t i = 0; i < tile.segments.size(); ++i) {
      const Segment& segment = tile.segments[i];
      if (segment.part != ref.part || row < segment.row_begin || row >= segment.row_end) continue;
      const std::uint64_t row_bytes = segment.bytes / static_cast<std::uint64_t>(segment.row_end - segment.row_begin);
      return this->segment(t, i) + static_cast<std::uint64_t>(row - segment.row_begin) * row_bytes;
    }
  }
  return nullptr;
}

Status Store::read_rows(WeightRef ref, std::span<const std::int64_t> rows, std::byte* out) {
  const Part& part = units_.part(ref);
  const auto row_bytes = static_cast<std::uint64_t>(millrace::row_bytes(part.dtype, part.cols));
  for (const std::int64_t row : rows)
    if (row < 0 || row >= part.rows)
      return error(Code::invalid_argument, "{} has no row {}: it has {}", part.name, row, part.rows);

  std::size_t next = 0;
  while (next < rows.size()) {
    // A batch: as many absent rows as the scratch memory holds, each with the blocks around it.
    row_batch_.clear();
    missing_rows_.clear();
    std::uint64_t at = 0;
    {
      const MutexLock lock(mutex_);
      finish_loads();
      for (; next < rows.size(); ++next) {
        if (const std::byte* present = present_row(ref, rows[next])) {
          std::memcpy(out + next * row_bytes, present, row_bytes);
          continue;
        }
        const std::uint64_t offset = part.offset + static_cast<std::uint64_t>(rows[next]) * row_bytes;
        const auto wide = storage::widened(offset, row_bytes, storage::kMaxAlignment);
        if (at + wide.bytes > row_scratch_.bytes) break;
        row_batch_.push_back({part.file, offset, row_bytes, memory_.data(row_scratch_) + at + wide.lead});
        missing_rows_.push_back(static_cast<std::int64_t>(next));
        at += wide.bytes;
      }
    }
    if (row_batch_.empty()) {
      if (next == rows.size()) break;
      return error(Code::internal, "the plan left no memory to read rows of {}", part.name);
    }
    backend_.submit(row_batch_, row_reads_);
    const Status status = row_reads_.wait();
    if (!status.ok()) return status.with_context(fmt::format("reading rows of {}", part.name));
    for (std::size_t i = 0; i < row_batch_.size(); ++i)
      std::memcpy(out + static_cast<std::uint64_t>(missing_rows_[i]) * row_bytes, row_batch_[i].destination, row_bytes);
    const MutexLock lock(mutex_);
    counters_.bytes_from_disk += row_batch_.size() * row_bytes;
  }
  return {};
}

}  // namespace millrace::residency

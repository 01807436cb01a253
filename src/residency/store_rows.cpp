// Single rows of a part, without a lease: from memory where their tile lies there, else from the file.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/bytes.h"
#include "base/mutex.h"
#include "residency/store.h"

namespace millrace::residency {

/// Where the row lies in memory now, or nullptr. The mutex is held.
const std::byte* Store::present_row(WeightRef ref, std::int64_t row) const {
  const auto all = units_.tiles_of(ref.unit);
  auto range = all;
  if (units_.units()[static_cast<std::size_t>(ref.unit)].parts.size() == 1) {  // its tiles have the rows in order
    const auto first = units_.tiles().begin() + all.first;
    const auto place = std::partition_point(first, units_.tiles().begin() + all.last,
                                            [row](const Tile& tile) { return tile.segments.back().row_end <= row; });
    range.first = static_cast<std::int32_t>(all.first + (place - first));
    range.last = std::min(all.last, range.first + 1);
  }
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

static Status check_rows(const Part& part, std::span<const std::int64_t> rows) {
  for (const std::int64_t row : rows)
    if (row < 0 || row >= part.rows)
      return error(Code::invalid_argument, "{} has no row {}: it has {}", part.name, row, part.rows);
  return {};
}

Status Store::read_rows(WeightRef ref, std::span<const std::int64_t> rows, std::byte* out) {
  const Part& part = units_.part(ref);
  const auto row_bytes = static_cast<std::uint64_t>(millrace::row_bytes(part.dtype, part.cols));
  MR_RETURN_IF_ERROR(check_rows(part, rows));
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

Status Store::begin_rows(WeightRef ref, std::span<const std::int64_t> rows, std::byte* out) {
  const Part& part = units_.part(ref);
  MR_RETURN_IF_ERROR(check_rows(part, rows));
  const MutexLock lock(mutex_);
  if (ahead_.unfinished || ahead_.in_flight)
    return error(Code::internal, "rows of {} are asked for while others are read", part.name);
  if (cached_part_.none() && !mapped_) {
    row_cache_ = RowCache({memory_.data(row_cache_memory_), row_cache_memory_.bytes}, row_bytes(part.dtype, part.cols));
    cached_part_ = ref;
  }
  ahead_.part = ref;
  ahead_.rows = rows;
  ahead_.out = out;
  ahead_.next = 0;
  ahead_.unfinished = true;
  ahead_.status = {};
  submit_rows();
  return {};
}

/// Asks for the next rows, as many as the memory holds, each with the blocks around it.
void Store::submit_rows() {
  const Part& part = units_.part(ahead_.part);
  const auto row_bytes = static_cast<std::uint64_t>(millrace::row_bytes(part.dtype, part.cols));
  const bool keeps = ahead_.part == cached_part_;
  ahead_.reads.clear();
  ahead_.places.clear();
  for (std::uint64_t at = 0; ahead_.next < ahead_.rows.size(); ++ahead_.next) {
    const std::int64_t row = ahead_.rows[ahead_.next];
    const std::byte* here = present_row(ahead_.part, row);
    if (here == nullptr && keeps) here = row_cache_.find(row);
    if (here != nullptr) {
      std::memcpy(ahead_.out + ahead_.next * row_bytes, here, row_bytes);
      ++counters_.row_hits;
      continue;
    }
    const std::uint64_t offset = part.offset + static_cast<std::uint64_t>(row) * row_bytes;
    const auto wide = storage::widened(offset, row_bytes, storage::kMaxAlignment);
    if (at + wide.bytes > ahead_scratch_.bytes) break;
    ahead_.reads.push_back({part.file, offset, row_bytes, memory_.data(ahead_scratch_) + at + wide.lead});
    ahead_.places.push_back(ahead_.next);
    at += wide.bytes;
  }
  ahead_.in_flight = !ahead_.reads.empty();
  if (ahead_.in_flight) backend_.submit(ahead_.reads, ahead_reads_);
  if (!ahead_.in_flight && ahead_.next < ahead_.rows.size())
    ahead_.status = error(Code::internal, "the plan left no memory to read rows of {}", part.name);
}

/// Takes the rows that have arrived, and asks for the next ones.
void Store::take_rows() {
  if (!ahead_.in_flight || !ahead_reads_.done()) return;
  ahead_.in_flight = false;
  const Part& part = units_.part(ahead_.part);
  const auto row_bytes = static_cast<std::uint64_t>(millrace::row_bytes(part.dtype, part.cols));
  if (Status read = ahead_reads_.wait(); !read.ok()) {
    ahead_.status = read.with_context(fmt::format("reading rows of {}", part.name));
    return;
  }
  for (std::size_t i = 0; i < ahead_.reads.size(); ++i) {
    const std::size_t place = ahead_.places[i];
    std::memcpy(ahead_.out + place * row_bytes, ahead_.reads[i].destination, row_bytes);
    if (ahead_.part == cached_part_) row_cache_.put(ahead_.rows[place], ahead_.reads[i].destination);
  }
  counters_.row_misses += ahead_.reads.size();
  counters_.bytes_from_disk += ahead_.reads.size() * row_bytes;
  submit_rows();
}

Status Store::finish_rows() {
  const MutexLock lock(mutex_);
  while (ahead_.in_flight) {
    if (!ahead_reads_.done()) {
      const auto begin = std::chrono::steady_clock::now();
      {
        const MutexUnlock unlocked(mutex_);
        (void)ahead_reads_.wait();
      }
      counters_.stall_ns += static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count());
    }
    take_rows();
  }
  ahead_.unfinished = false;
  return ahead_.status;
}

}  // namespace millrace::residency

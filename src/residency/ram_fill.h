// Weights on their way to RAM behind the first tokens: a thread of its own reads them in the order in which passes use
// them, so that a model serves as soon as what is at home in VRAM is there.
//
// The reads land in a small ring that stays in the processor's cache and are copied from there to where they belong: a
// virtual disk, which copies, too, delivers a quarter less into memory that is in no cache
// (docs/internals/benchmarks.md). So a destination need not be aligned, and nothing around it is written.
//
// The reads come in groups; has() says of each whether it is complete. After an error the thread rests. The error is
// told once, to the next wait() for a group that is missing; a wait() after that makes the thread read on from where it
// failed, so that a disk that failed for a moment does no lasting harm.
// Ownership: the reads' destinations, the backend and the budget outlive the object; nobody reads a group's bytes
// before has() or wait() has said that it is there. Destroying waits for the reads under way and starts no more; no
// wait() may be left. Thread-safety: all methods may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/os/thread.h"
#include "base/status.h"
#include "device/host_memory.h"
#include "residency/budget.h"
#include "residency/placement.h"
#include "storage/storage.h"

namespace millrace::residency {

/// Reads kChunks at a time. `landed` is told the index of each that has come, in order; what it returns other
/// than ok ends the reading. When this returns, no read is under way. Errors: the first of a read, or of `landed`.
Status read_in_order(storage::Backend& backend, std::span<const storage::Read> reads,
                     const std::function<Status(std::size_t)>& landed);

class RamFill {
 public:
  /// reads: of kChunkBytes at most. ends: by group, how many of `reads` are its own and of groups before it. A group
  /// without reads is there as soon as those before it are. ram: grants the ring ("staging", kChunkRingBytes) until
  /// complete(). Errors: out_of_budget, io_error (no thread).
  static Expected<std::unique_ptr<RamFill>> start(std::vector<storage::Read> reads, std::vector<std::size_t> ends,
                                                  storage::Backend& backend, Budget& ram);
  ~RamFill();

  /// Whether the group, by its index, and all before it are in memory.
  bool has(std::size_t group) const { return group < groups_.load(std::memory_order_acquire); }
  bool complete() const { return has(ends_.size() - 1); }
  std::uint64_t total_bytes() const { return total_bytes_; }
  std::uint64_t read_bytes() const { return read_bytes_.load(std::memory_order_relaxed); }

  /// Blocks until has(group). Meanwhile calls `meanwhile`, from this thread, at once and then some twenty times a
  /// second; what it returns other than ok ends the wait, not the reading. Errors: the read's that failed, meanwhile's.
  Status wait(std::size_t group, const std::function<Status()>& meanwhile);

 private:
  RamFill(std::vector<storage::Read> reads, std::vector<std::size_t> ends, storage::Backend& backend);
  void work();
  std::size_t complete_groups() const;
  Status read_on();
  Status land(const std::byte* bytes);

  storage::Backend& backend_;
  std::vector<storage::Read> reads_;  // the thread's; given back when all have come
  const std::vector<std::size_t> ends_;
  std::uint64_t total_bytes_ = 0;
  Reservation staging_;  // the thread's, as is the ring; given back when all have come
  device::HostBuffer ring_;
  std::size_t landed_ = 0;  // the thread's: reads that have come
  std::atomic<std::size_t> groups_{0};
  std::atomic<std::uint64_t> read_bytes_{0};

  Mutex mutex_;
  CondVar changed_;
  Status failure_ MR_GUARDED_BY(mutex_);     // why the thread rests
  bool told_ MR_GUARDED_BY(mutex_) = false;  // a wait() has returned failure_
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  os::Thread thread_;
};

}  // namespace millrace::residency

// Fills RAM with weights in the background: a thread reads them in the order in which passes use them, so that a model
// answers as soon as its weights in VRAM are loaded.
//
// The reads go into a small ring that stays in the CPU's cache and are copied from there to their destinations: a
// virtual disk, which also copies, delivers a quarter less into memory outside the cache
// (docs/internals/benchmarks.md). So a destination need not be aligned, and no bytes around it are written.
//
// The reads form groups; has() returns whether a group is complete. After an error the thread pauses. The next wait()
// for a missing group returns the error; a wait() after that makes the thread continue from the failed read, so that a
// temporary failure of the disk does no lasting harm.
// Ownership: the reads' destinations, the backend and the budget outlive the object; a group's bytes may be read only
// after has() or wait() has confirmed it. The destructor waits for reads in flight; no wait() may be running then.
// Thread-safety: any thread may call all methods.
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

/// Reads kChunks at a time. Calls `landed` with the index of each completed read, in order; an error from it ends the
/// reading. When this returns, no read is in flight. Errors: the first error of a read, or of `landed`.
Status read_in_order(storage::Backend& backend, std::span<const storage::Read> reads,
                     const std::function<Status(std::size_t)>& landed);

class RamFill {
 public:
  /// reads: each of kChunkBytes at most. ends: by group, the number of `reads` up to the end of the group. A group
  /// without reads is complete as soon as the groups before it are. ram: grants the ring ("staging", kChunkRingBytes)
  /// until complete(). Errors: out_of_budget, io_error (no thread).
  static Expected<std::unique_ptr<RamFill>> start(std::vector<storage::Read> reads, std::vector<std::size_t> ends,
                                                  storage::Backend& backend, Budget& ram);
  ~RamFill();

  /// Whether the group with this index, and all groups before it, are in memory.
  bool has(std::size_t group) const { return group < groups_.load(std::memory_order_acquire); }
  bool complete() const { return has(ends_.size() - 1); }
  std::uint64_t total_bytes() const { return total_bytes_; }
  std::uint64_t read_bytes() const { return read_bytes_.load(std::memory_order_relaxed); }

  /// Blocks until has(group). Calls `meanwhile` from this thread, at once and then about twenty times per second; an
  /// error from it ends the wait, but not the reading. Errors: those of the failed read, or of `meanwhile`.
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

// Reads a model's first weights into RAM while the GPU's driver starts, which takes a third of a second in which the
// disk would idle. The loader then takes what has been read and reads the rest.
//
// A read that fails is treated as if it had not been started: the loader reads those bytes again and reports the error.
// The reads go through a ring like RamFill's (ram_fill.h), so that a chunk's offset in memory need not match its offset
// in the file modulo the block size.
// Ownership: the backend outlives the object; the destructor stops the reads. Thread-safety: begin(), end() and find()
// on one thread; taken_bytes() on any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/os/thread.h"
#include "base/status.h"
#include "device/host_memory.h"
#include "residency/unit.h"
#include "storage/storage.h"

namespace millrace::residency {

class HeadStart {
 public:
  /// Starts a thread that reads the parts of `units` in order, cut by each_chunk(), up to `most_bytes`. Skips units
  /// aside. Errors: out_of_budget (no memory), io_error (no thread).
  static Expected<std::unique_ptr<HeadStart>> begin(const UnitTable& units, storage::Backend& backend,
                                                    std::uint64_t most_bytes);
  ~HeadStart() { end(); }
  HeadStart(const HeadStart&) = delete;
  HeadStart& operator=(const HeadStart&) = delete;

  /// The most RAM that it may take, and the RAM taken so far.
  std::uint64_t most_bytes() const { return ring_.bytes() + memory_.bytes(); }
  std::uint64_t taken_bytes() const;
  /// Stops starting reads, and waits for those in flight.
  void end();
  /// The address of these bytes of a file, whatever their destination; null: they were not read as one chunk.
  /// REQUIRES: end().
  const std::byte* find(const storage::Read& chunk) const;

 private:
  HeadStart(std::vector<storage::Read> reads, storage::Backend& backend);
  void work();

  storage::Backend& backend_;
  std::vector<storage::Read> reads_;
  device::HostBuffer ring_, memory_;
  std::atomic<std::size_t> landed_{0};  // of reads_: they are in memory
  std::atomic<bool> ending_ = false;
  std::map<std::pair<int, std::uint64_t>, const storage::Read*> by_place_;  // those that have landed; filled by end()
  os::Thread thread_;
};

}  // namespace millrace::residency

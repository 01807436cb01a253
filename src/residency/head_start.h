// A model's first weights on their way to RAM while a GPU's driver starts, which takes a third of a second in which the
// disk would rest. Whoever loads takes what has come by then, and reads the rest.
//
// What fails to come is not there, as if nobody had asked: whoever reads it next tells why. The reads go through a
// ring as RamFill's do (ram_fill.h), so that where a chunk lies in memory need not be where it lies in the file modulo
// the block size.
// Ownership: the backend outlives the object. Destroying ends it. Thread-safety: begin(), end() and find() on one
// thread; taken_bytes() on any.
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
  /// A thread reads the parts of `units` in their order, as each_chunk() cuts them, `most_bytes` at most. Those aside
  /// are left out. Errors: out_of_budget (no memory), io_error (no thread).
  static Expected<std::unique_ptr<HeadStart>> begin(const UnitTable& units, storage::Backend& backend,
                                                    std::uint64_t most_bytes);
  ~HeadStart() { end(); }
  HeadStart(const HeadStart&) = delete;
  HeadStart& operator=(const HeadStart&) = delete;

  /// What it may take at most, and has taken of RAM until now.
  std::uint64_t most_bytes() const { return ring_.bytes() + memory_.bytes(); }
  std::uint64_t taken_bytes() const;
  /// Starts no more reads and waits for those under way.
  void end();
  /// Where the bytes of that part of a file are, whatever its destination; null: they have not come as one chunk.
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

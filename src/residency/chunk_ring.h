// Reads on their way through a small ring in host memory: one that stays in the processor's cache is filled faster.
// They are started in order and taken in that order, each once it has come; a taken chunk's bytes lie there until its
// place is started anew. When that may be is the user's to know: at once behind a copy of the processor's, behind an
// event where a device copies.
//
// Ownership: memory and backend outlive the object; destroying waits for the reads under way. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "residency/placement.h"
#include "storage/storage.h"

namespace millrace::residency {

class ChunkRing {
 public:
  /// memory: slots * kChunkRoom bytes on a block's edge.
  ChunkRing(storage::Backend& backend, std::byte* memory, std::size_t slots);
  ~ChunkRing() { drain(); }
  ChunkRing(const ChunkRing&) = delete;
  ChunkRing& operator=(const ChunkRing&) = delete;

  // Chunks by number, from 0 on: taken() <= started() <= taken() + slots.
  std::uint64_t started() const { return started_; }
  std::uint64_t taken() const { return taken_; }
  std::uint64_t under_way() const { return started_ - taken_; }
  /// The place that the next one goes to, and that of the one to be taken next.
  std::size_t next_slot() const { return static_cast<std::size_t>(started_ % slots_); }
  std::size_t oldest_slot() const { return static_cast<std::size_t>(taken_ % slots_); }

  /// Starts a read of kChunkBytes at most, to a place in the ring wherever `chunk` says it goes.
  /// REQUIRES: under_way() < slots, nobody needs what lies in next_slot().
  void start(const storage::Read& chunk);
  /// Whether the oldest has come, or failed. REQUIRES: under_way() > 0.
  bool ready() const { return completions_[oldest_slot()].done(); }
  /// Waits for the oldest; its bytes. Errors: the read's, and the chunk is taken all the same.
  Expected<const std::byte*> take();
  /// Waits for all under way; they count as taken.
  void drain();
  /// Numbers begin anew. REQUIRES: under_way() == 0.
  void renumber() { started_ = taken_ = 0; }

 private:
  storage::Backend& backend_;
  std::byte* const memory_;
  const std::size_t slots_;
  const std::unique_ptr<storage::Completion[]> completions_;  // by slot
  const std::unique_ptr<std::byte*[]> data_;                  // likewise: where the chunk's bytes begin
  std::uint64_t started_ = 0, taken_ = 0;
};

}  // namespace millrace::residency

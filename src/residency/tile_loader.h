// Reads tiles: a fixed pool of loads, each with its own Completion, so that nothing allocates while the engine runs.
// Not thread-safe: the store's mutex guards it, except wait_for() and done(), which need no lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "residency/unit.h"
#include "storage/storage.h"

namespace millrace::residency {

class TileLoader {
 public:
  TileLoader(const UnitTable& units, storage::Backend& backend, std::size_t max_loads, bool poison);
  /// Waits for every read: their memory must outlive this object.
  ~TileLoader();
  TileLoader(const TileLoader&) = delete;
  TileLoader& operator=(const TileLoader&) = delete;

  std::size_t free_loads() const { return free_.size(); }
  bool idle() const { return active_.empty(); }
  std::uint64_t bytes_in_flight() const { return bytes_in_flight_; }

  /// Starts the tile's reads into its slot at `memory`; returns the load. REQUIRES: free_loads() > 0.
  std::int32_t start(std::int32_t tile, std::byte* memory);

  /// Loads in flight, oldest first.
  const std::vector<std::int32_t>& active() const { return active_; }
  std::int32_t tile_of(std::int32_t load) const { return loads_[load].tile; }
  bool done(std::int32_t load) const { return loads_[load].completion.done(); }

  /// Blocks until the load has succeeded or failed. Does not finish the load.
  void wait_for(std::int32_t load) { (void)loads_[load].completion.wait(); }

  /// Frees every load that has ended, after reporting its outcome.
  void finish(FunctionRef<void(std::int32_t tile, const Status& status)> on_done);

 private:
  struct Load {
    std::int32_t tile = -1;
    storage::Completion completion;
    std::vector<storage::Read> reads;
  };
  const UnitTable& units_;
  storage::Backend& backend_;
  const std::size_t max_loads_;
  const bool poison_;
  std::unique_ptr<Load[]> loads_;
  std::vector<std::int32_t> free_, active_;
  std::uint64_t bytes_in_flight_ = 0;
};

}  // namespace millrace::residency

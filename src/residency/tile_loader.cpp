#include "residency/tile_loader.h"

#include <algorithm>
#include <cstring>

namespace millrace::residency {

constexpr int kPoison = 0xa5;

TileLoader::TileLoader(const UnitTable& units, storage::Backend& backend, std::size_t max_loads, bool poison)
    : units_(units),
      backend_(backend),
      max_loads_(max_loads),
      poison_(poison),
      loads_(std::make_unique<Load[]>(max_loads)) {
  std::size_t most_spans = 0;
  for (const Tile& tile : units.tiles()) most_spans = std::max(most_spans, tile.spans.size());
  free_.reserve(max_loads_);
  active_.reserve(max_loads_);
  for (std::size_t i = max_loads_; i-- > 0;) {
    loads_[i].reads.reserve(most_spans);
    free_.push_back(static_cast<std::int32_t>(i));
  }
}

TileLoader::~TileLoader() {
  for (const std::int32_t load : active_) wait_for(load);
}

std::int32_t TileLoader::start(std::int32_t tile, std::byte* memory) {
  MR_ASSERT(!free_.empty());
  const std::int32_t index = free_.back();
  free_.pop_back();
  Load& load = loads_[index];
  load.tile = tile;
  load.reads.clear();
  const Tile& what = units_.tiles()[tile];
  if (poison_) std::memset(memory, kPoison, what.slot_bytes);
  for (const Span& span : what.spans)
    load.reads.push_back({span.file, span.file_offset, span.bytes, memory + span.slot_offset});
  active_.push_back(index);
  bytes_in_flight_ += what.bytes;
  backend_.submit(load.reads, load.completion);
  return index;
}

void TileLoader::finish(FunctionRef<void(std::int32_t tile, const Status& status)> on_done) {
  const auto first_done = std::find_if(active_.begin(), active_.end(), [&](std::int32_t load) { return done(load); });
  if (first_done == active_.end()) return;
  auto kept = active_.begin();
  for (auto it = active_.begin(); it != active_.end(); ++it) {
    // done() is asked once a load: one that ends meanwhile is left for the next call.
    if (it < first_done || !done(*it)) {
      *kept++ = *it;
      continue;
    }
    Load& load = loads_[*it];
    const Status status = load.completion.wait();
    bytes_in_flight_ -= units_.tiles()[load.tile].bytes;
    on_done(load.tile, status);
    load.tile = -1;
    free_.push_back(*it);
  }
  active_.erase(kept, active_.end());
}

}  // namespace millrace::residency

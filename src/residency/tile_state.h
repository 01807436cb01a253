// The weight store's state of each tile. Internal to the store.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::residency {

/// elsewhere: not in this store.
enum class Place : std::uint8_t { mapped, resident, ring, expert, elsewhere };
enum class TileStatus : std::uint8_t { absent, loading, ready, failed };

/// Invariants: `memory` is set while loading or ready (mapped tiles have none). A tile with pins > 0 keeps its memory
/// until its read fails. A failed tile holds no memory and becomes absent with its last pin. Guarded by the store's
/// mutex, except that the executor thread may read `memory` of a tile it has pinned.
struct TileState {
  Place place = Place::ring;
  TileStatus status = TileStatus::absent;
  std::int32_t pins = 0;
  std::int32_t slot = -1;       // in the ring or the expert cache, while it holds one
  std::int32_t load = -1;       // in the loader, while loading
  std::int32_t position = -1;   // in pass order, for ordered tiles
  std::uint32_t used_pass = 0;  // the last pass that leased it
  bool ahead = false;           // an expert that was read ahead and not used yet
  bool learned = false;         // likewise, because it was learned that it will be
  std::byte* memory = nullptr;  // where its slot begins
};

}  // namespace millrace::residency

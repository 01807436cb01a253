// Where a model's units are at home beside one GPU, and what they take there: of the GPU's memory and of the host's.
// DeviceWeights and DeviceExperts lie as this says, so that a plan can be made before there is either. Pure; needs no
// GPU. Thread-safety: values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "residency/plan.h"
#include "residency/unit.h"
#include "residency/weight_store.h"
#include "storage/storage.h"

namespace millrace::residency {

// Reads on their way through a small ring in host memory: one that stays in the processor's cache is filled faster.
// They end at multiples of kChunkBytes of the file, so that O_DIRECT reads each as one request.
constexpr std::uint64_t kChunkBytes = 512u << 10;
constexpr std::size_t kChunks = 16;  // under way at a time: enough to keep a disk busy
/// A chunk's place in a ring, where it lies as in the file modulo the block size.
constexpr std::uint64_t kChunkRoom = kChunkBytes + 2 * storage::kMaxAlignment;
constexpr std::uint64_t kChunkRingBytes = kChunks * kChunkRoom;
/// Where the chunk of a file that begins at `offset` ends, in bytes that end at `end`.
inline std::uint64_t chunk_end(std::uint64_t offset, std::uint64_t end, std::uint64_t chunk = kChunkBytes) {
  return std::min(round_down(offset, chunk) + chunk, end);
}
/// The chunks of a part's bytes, in order.
template <typename Take>
void each_chunk(const Part& part, std::uint64_t chunk, const Take& take) {
  const std::uint64_t end = part.offset + part.bytes();
  for (std::uint64_t at = part.offset, next = 0; at < end; at = next) {
    next = chunk_end(at, end, chunk);
    take(at, next - at);
  }
}

/// Where each unit is at home. A head is at home in device memory; experts there, all of them, or else not in
/// DeviceWeights, which hold their entries in the table alone. An embedding at home in RAM is read by the GPU where it
/// lies, row by row.
struct DevicePlacement {
  std::vector<Tier> homes;  // by unit
  int ring_units = 0;       // so many whole units and the next one's first groups fit into the ring; 0: nothing streams
  bool straight = false;    // the disk is read straight into device memory: no ring of page-locked memory for it
  // Units that move are kept in VRAM while so many bytes more than that are free; false: never.
  bool use_spare = false;
  std::uint64_t spare_margin = 0;
  int host_permille = 0;  // of the rows of layers at home in RAM, the processor's (Plan::cpu_permille)

  /// It crosses to the device in every pass.
  bool moves(const UnitTable& units, std::size_t unit) const {
    return homes[unit] != Tier::vram && units.units()[unit].kind == UnitKind::trunk;
  }
  /// An expert outside VRAM: the affair of DeviceExperts.
  bool flows(const UnitTable& units, std::size_t unit) const {
    return homes[unit] != Tier::vram && units.units()[unit].kind == UnitKind::expert;
  }
};

/// How many experts lie where.
struct ExpertTiers {
  int ram_slots = 0;               // of all experts, in page-locked memory at once
  int vram_slots = 0;              // in device memory
  int spare_slots = 0;             // more of them, at most, in memory that is free for now
  std::uint64_t spare_margin = 0;  // bytes that stay free beside those
  int wave_experts = 0;            // that cross at once for passes of many rows
  LinkShare link = {};
  CachePolicy policy = CachePolicy::lru;  // of those in RAM; slots are for favourites
  bool any() const { return ram_slots > 0; }
};

/// Rows of a matrix that stay the device's where the processor takes `host_permille` of them: the first ones, a
/// multiple of 32. All of a small matrix.
std::int64_t device_rows(std::int64_t rows, int host_permille);

// --- Units that are at home, or move ---

constexpr std::uint64_t kDeviceEdge = 256;    // of parts in device memory
constexpr std::uint64_t kBehindWeight = 256;  // readable bytes behind each, for kernels' wide loads

/// Device memory of a part.
std::uint64_t device_room(const Part& part);
/// In page-locked memory a part lies as in the file modulo the block size, in blocks of its own, so that it is read
/// without a copy: so far behind their beginning, and so many bytes in all.
std::uint64_t pinned_lead(const Part& part);
std::uint64_t pinned_room(const Part& part);
std::uint64_t device_room(const Unit& unit);
std::uint64_t pinned_room(const Unit& unit);

/// Parts of a unit that move at once, up to the next cut's first.
struct MovingCut {
  std::size_t first_part = 0;
  std::uint64_t bytes = 0;  // of device memory
};
/// A quarter of the unit, or one large part: an attention block, and the three matrices of a feed-forward one by one.
std::vector<MovingCut> cut_for_moving(const Unit& unit);

/// The table of addresses: an entry a part.
std::uint64_t table_bytes(const UnitTable& units);
/// The ring that units which move go through.
std::uint64_t ring_bytes(const UnitTable& units, const DevicePlacement& placement);
/// Device memory: table, units at home in VRAM, ring.
std::uint64_t device_weight_bytes(const UnitTable& units, const DevicePlacement& placement);
/// Page-locked bytes that stay: units at home in RAM, and the ring in front of units at home on the disk.
std::uint64_t pinned_weight_bytes(const UnitTable& units, const DevicePlacement& placement);
/// Chunks of the ring through which loading reads: those under way, and those on their way to the device.
constexpr std::size_t kLoadingChunks = kChunks + 4;
/// What that takes for as long as loading lasts. What comes to RAM behind it takes no more.
constexpr std::uint64_t kLoadingBytes = kLoadingChunks * kChunkRoom;

// --- Experts that flow ---

constexpr int kExpertRooms = 2;                 // waves that lie in device memory at once
constexpr int kExpertBiases = 6;                // vectors that have a row for each expert of a layer, at most
constexpr std::uint64_t kBehindExperts = 4096;  // readable, as behind parts in device memory

/// RAM slots under which waves could not be read ahead.
constexpr int least_ram_experts(int wave_experts) { return (kExpertRooms + 2) * wave_experts; }
/// Where the parts of any layer's expert begin that lie on edges, and where the last one ends.
std::vector<std::uint64_t> expert_part_offsets(const UnitTable& units);
/// Experts of a layer at most.
std::size_t most_experts_of_a_layer(const UnitTable& units);
/// Device memory of one expert.
std::uint64_t device_slot_bytes(const UnitTable& units);
/// Of a wave's table of addresses. parts: of an expert.
std::uint64_t wave_table_bytes(const ExpertTiers& tiers, std::size_t parts);
std::uint64_t device_expert_bytes(const UnitTable& units, const ExpertTiers& tiers);
std::uint64_t pinned_expert_bytes(const UnitTable& units, const ExpertTiers& tiers);

}  // namespace millrace::residency

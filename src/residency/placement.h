// The home of each unit of a model that one GPU computes, and the GPU and host memory that the units take.
// DeviceWeights and DeviceExperts use this layout, so that a plan can be made before either exists. Pure; needs no GPU.
// Thread-safety: values.
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

// Reads pass through a small ring in host memory, because a ring that stays in the CPU's cache is filled faster. They
// end at multiples of kChunkBytes of the file, so that O_DIRECT reads each as one request.
constexpr std::uint64_t kChunkBytes = 512u << 10;
constexpr std::size_t kChunks = 16;  // in flight at a time: enough to keep a disk busy
/// A chunk's slot in the ring; its offset modulo the block size is the same as in the file.
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

/// The home of each unit. The head's home is device memory. Experts are all there, or else DeviceExperts holds them and
/// DeviceWeights has only their entries in the table. The GPU reads an embedding whose home is RAM in place, row by
/// row.
struct DevicePlacement {
  std::vector<Tier> homes;  // by unit
  int ring_units = 0;     // whole units that fit into the ring, beside the next one's first groups; 0: nothing streams
  bool straight = false;  // the disk is read directly into device memory, without a ring of page-locked memory
  // Streamed units are kept in VRAM while more bytes than the margin are free; false: never.
  bool use_spare = false;
  std::uint64_t spare_margin = 0;
  int host_permille = 0;  // of the rows of layers in RAM, those that the CPU computes (Plan::cpu_permille)

  /// Whether the unit crosses to the device in every pass.
  bool moves(const UnitTable& units, std::size_t unit) const {
    return homes[unit] != Tier::vram && units.units()[unit].kind == UnitKind::trunk;
  }
  /// Whether the unit is an expert outside VRAM, which DeviceExperts handles.
  bool flows(const UnitTable& units, std::size_t unit) const {
    return homes[unit] != Tier::vram && units.units()[unit].kind == UnitKind::expert;
  }
};

/// How many experts each memory holds.
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

/// The number of rows of a matrix that the device computes if the CPU takes `host_permille` of them: the first rows, a
/// multiple of 32; all rows of a small matrix.
std::int64_t device_rows(std::int64_t rows, int host_permille);

// --- Units with a home, and units that stream ---

constexpr std::uint64_t kDeviceEdge = 256;    // of parts in device memory
constexpr std::uint64_t kBehindWeight = 256;  // readable bytes behind each, for kernels' wide loads

/// Device memory of a part.
std::uint64_t device_room(const Part& part);
/// A part in page-locked memory has the same offset modulo the block size as in the file, and shares no block with
/// another part, so that it is read without a copy. These are its offset from the first block, and the size in all.
std::uint64_t pinned_lead(const Part& part);
std::uint64_t pinned_room(const Part& part);
std::uint64_t device_room(const Unit& unit);
std::uint64_t pinned_room(const Unit& unit);

/// Parts of a unit that are copied together, up to the first part of the next cut.
struct MovingCut {
  std::size_t first_part = 0;
  std::uint64_t bytes = 0;  // of device memory
};
/// Cuts of about a quarter of the unit, or one large part: the attention block, and each matrix of the feed-forward.
std::vector<MovingCut> cut_for_moving(const Unit& unit);

/// The size of the table of addresses, with one entry per part.
std::uint64_t table_bytes(const UnitTable& units);
/// The size of the ring for streamed units.
std::uint64_t ring_bytes(const UnitTable& units, const DevicePlacement& placement);
/// Device memory in all: table, units in VRAM, ring.
std::uint64_t device_weight_bytes(const UnitTable& units, const DevicePlacement& placement);
/// Page-locked memory in all: units in RAM, and the ring for units on the disk.
std::uint64_t pinned_weight_bytes(const UnitTable& units, const DevicePlacement& placement);
/// Chunks of the ring that loading uses: those that are read, and those that are copied to the device.
constexpr std::size_t kLoadingChunks = kChunks + 4;
/// The memory that loading takes beside the weights, until it ends.
constexpr std::uint64_t kLoadingBytes = kLoadingChunks * kChunkRoom;

// --- Experts outside VRAM ---

constexpr int kExpertRooms = 2;                 // waves that device memory holds at once
constexpr int kExpertBiases = 6;                // vectors that have a row for each expert of a layer, at most
constexpr std::uint64_t kBehindExperts = 4096;  // readable, as behind parts in device memory

/// The least number of RAM slots with which waves can be read ahead.
constexpr int least_ram_experts(int wave_experts) { return (kExpertRooms + 2) * wave_experts; }
/// The aligned offsets of the parts of an expert, for any layer, and the end of the last one.
std::vector<std::uint64_t> expert_part_offsets(const UnitTable& units);
/// The largest number of experts of a layer.
std::size_t most_experts_of_a_layer(const UnitTable& units);
/// Device memory of one expert.
std::uint64_t device_slot_bytes(const UnitTable& units);
/// The size of a wave's table of addresses. parts: of one expert.
std::uint64_t wave_table_bytes(const ExpertTiers& tiers, std::size_t parts);
std::uint64_t device_expert_bytes(const UnitTable& units, const ExpertTiers& tiers);
std::uint64_t pinned_expert_bytes(const UnitTable& units, const ExpertTiers& tiers);

}  // namespace millrace::residency

// KV blocks in the memory of a GPU; or of several, each of which has its heads' part of every block, or all of it.
// Thread-safety: as kv::BlockMemory; on_device() may be asked from any thread during a pass.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "kv/sequence.h"
#include "residency/budget.h"

namespace millrace::exec {

/// KV blocks in device memory, `most` of them: `first` are taken at once and kept, the others a chunk at a time while
/// they are needed.
struct DeviceBlocksShape {
  std::int64_t first = 0, most = 0;
  std::uint64_t block_bytes = 0;  // on one device

  std::uint64_t chunk_bytes() const;
  std::uint64_t most_bytes() const;  // of device memory
};

/// Whose memory it is, and who grants it.
struct BlockDevice {
  int device = 0;
  residency::Budget& vram;  // outlives the blocks
};

class DeviceBlocks final : public kv::BlockMemory {
 public:
  /// Errors: out_of_budget.
  static Expected<std::unique_ptr<DeviceBlocks>> create(const DeviceBlocksShape& shape,
                                                        std::vector<BlockDevice> devices);

  /// A block's address is that of its part on the first device.
  Expected<std::byte*> allocate(bool press) override;
  void release(std::byte* block) override;
  void trim() override;
  /// All parts, one behind the other; where each device has all of a block, what the first one has.
  Status read(const std::byte* block, std::byte* out, std::size_t bytes) override;
  Status write(std::byte* block, const std::byte* in, std::size_t bytes) override;
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override;  // no byte leaves its device
  /// Where its part on that device lies, by its place in `devices`.
  const std::byte* on_device(std::size_t device, const std::byte* block) const;

 private:
  /// Of each device, in the order in which they go: the memory before its reservation.
  struct Memory {
    residency::Reservation reservation;
    device::DeviceBuffer bytes;
  };
  struct Chunk {
    std::vector<Memory> memory;  // by device
    std::vector<std::byte*> free;
    std::int64_t blocks = 0;

    bool holds(const std::byte* block) const {
      const device::DeviceBuffer& bytes = memory.front().bytes;
      return block >= bytes.data() && block < bytes.data() + bytes.bytes();
    }
  };

  DeviceBlocks(const DeviceBlocksShape& shape, std::vector<BlockDevice> devices)
      : shape_(shape), devices_(std::move(devices)) {}
  Status add_chunk(std::int64_t blocks, bool press);
  std::int64_t made() const;
  /// Of so many of a block, those on each device.
  std::size_t bytes_of_each(std::size_t bytes) const {
    return bytes == shape_.block_bytes ? bytes : bytes / devices_.size();
  }

  const DeviceBlocksShape shape_;
  const std::vector<BlockDevice> devices_;
  std::vector<Chunk> chunks_;  // the first stays
};

}  // namespace millrace::exec

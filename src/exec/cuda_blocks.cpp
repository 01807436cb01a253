// KV blocks in device memory.
#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "device/cuda_runtime.h"
#include "exec/cuda_executor.h"

namespace millrace::exec {
namespace {

constexpr std::uint64_t kChunkBytes = 64 * kMiB;

std::int64_t blocks_of_chunk(const DeviceBlocksShape& shape) {
  const auto most = static_cast<std::int64_t>(kChunkBytes / shape.block_bytes);
  return std::max<std::int64_t>(1, std::min(most, shape.most / 8));
}

class DeviceBlocks final : public kv::BlockMemory {
 public:
  DeviceBlocks(const DeviceBlocksShape& shape, residency::Budget& vram) : shape_(shape), vram_(vram) {}

  /// press: the budget may make others give way.
  Status add_chunk(std::int64_t blocks, bool press) {
    if (blocks <= 0) return full();
    const std::uint64_t bytes = static_cast<std::uint64_t>(blocks) * shape_.block_bytes;
    const std::uint64_t taken = device::allocation_bytes(bytes);
    Chunk chunk;
    MR_ASSIGN_OR_RETURN(chunk.reservation, vram_.reserve("kv", press ? taken : 0));
    if (!press && !chunk.reservation.try_grow(taken)) return full();
    MR_ASSIGN_OR_RETURN(chunk.memory, device::DeviceBuffer::allocate(bytes));
    for (std::int64_t i = blocks; i-- > 0;)
      chunk.free.push_back(chunk.memory.data() + static_cast<std::uint64_t>(i) * shape_.block_bytes);
    chunk.blocks = blocks;
    chunks_.push_back(std::move(chunk));
    return {};
  }

  Expected<std::byte*> allocate(bool press) override {
    const auto has_free = [](const Chunk& chunk) { return !chunk.free.empty(); };
    auto chunk = std::find_if(chunks_.begin(), chunks_.end(), has_free);  // the first, so that the last become empty
    if (chunk == chunks_.end()) {
      MR_RETURN_IF_ERROR(add_chunk(std::min(blocks_of_chunk(shape_), shape_.most - made()), press));
      chunk = chunks_.end() - 1;
    }
    std::byte* const block = chunk->free.back();
    chunk->free.pop_back();
    return block;
  }

  void release(std::byte* block) override {
    const auto holds = [block](const Chunk& chunk) {
      return block >= chunk.memory.data() && block < chunk.memory.data() + chunk.memory.bytes();
    };
    std::find_if(chunks_.begin(), chunks_.end(), holds)->free.push_back(block);
  }

  void trim() override {
    if (chunks_.empty()) return;
    const auto empty = [](const Chunk& chunk) { return static_cast<std::int64_t>(chunk.free.size()) == chunk.blocks; };
    chunks_.erase(std::remove_if(chunks_.begin() + 1, chunks_.end(), empty), chunks_.end());
  }

  Status read(const std::byte* block, std::byte* out, std::size_t bytes) override {
    MR_CUDA(cudaMemcpy(out, block, bytes, cudaMemcpyDeviceToHost));
    return {};
  }
  Status write(std::byte* block, const std::byte* in, std::size_t bytes) override {
    return device::write_device(block, in, bytes);
  }

 private:
  struct Chunk {
    // In this order, so that the memory goes before its reservation.
    residency::Reservation reservation;
    device::DeviceBuffer memory;
    std::vector<std::byte*> free;
    std::int64_t blocks = 0;
  };

  std::int64_t made() const {
    std::int64_t blocks = 0;
    for (const Chunk& chunk : chunks_) blocks += chunk.blocks;
    return blocks;
  }
  static Status full() {
    return error(Code::out_of_budget, "the KV cache on the GPU is full; give more --vram or a smaller --ctx");
  }

  const DeviceBlocksShape shape_;
  residency::Budget& vram_;
  std::vector<Chunk> chunks_;  // the first stays
};

}  // namespace

std::uint64_t DeviceBlocksShape::chunk_bytes() const {
  return device::allocation_bytes(static_cast<std::uint64_t>(blocks_of_chunk(*this)) * block_bytes);
}

std::uint64_t DeviceBlocksShape::most_bytes() const {
  const std::int64_t each = blocks_of_chunk(*this);
  return device::allocation_bytes(static_cast<std::uint64_t>(first) * block_bytes) +
         static_cast<std::uint64_t>((most - first + each - 1) / each) * chunk_bytes();
}

Expected<std::unique_ptr<kv::BlockMemory>> make_device_blocks(const DeviceBlocksShape& shape, residency::Budget& vram) {
  auto blocks = std::make_unique<DeviceBlocks>(shape, vram);
  MR_RETURN_IF_ERROR(blocks->add_chunk(shape.first, true));
  return std::unique_ptr<kv::BlockMemory>(std::move(blocks));
}

}  // namespace millrace::exec

#include "exec/gpu/blocks.h"

#include <algorithm>

#include "base/bytes.h"

namespace millrace::exec {
namespace {

constexpr std::uint64_t kChunkBytes = 64 * kMiB;

std::uint64_t memory_of(const DeviceBlocksShape& shape, std::int64_t blocks) {
  return device::allocation_bytes(static_cast<std::uint64_t>(blocks) * shape.block_bytes);
}

/// Few, so that memory is taken as it is needed, but where the driver's pages would leave much of a chunk unused, more.
std::int64_t blocks_of_chunk(const DeviceBlocksShape& shape) {
  const auto most = static_cast<std::int64_t>(kChunkBytes / shape.block_bytes);
  std::int64_t blocks = std::max<std::int64_t>(1, std::min(most, shape.most / 8));
  const auto wastes = [&] {
    const std::uint64_t taken = memory_of(shape, blocks);
    return taken - static_cast<std::uint64_t>(blocks) * shape.block_bytes > taken / 8;
  };
  while (blocks < std::min(most, shape.most) && wastes()) ++blocks;
  return blocks;
}

Status full() {
  return error(Code::out_of_budget, "the KV cache on the GPU is full; give more --vram or a smaller --ctx");
}

}  // namespace

std::uint64_t DeviceBlocksShape::chunk_bytes() const { return memory_of(*this, blocks_of_chunk(*this)); }

std::uint64_t DeviceBlocksShape::most_bytes() const {
  const std::int64_t each = blocks_of_chunk(*this), later = most - first;
  return memory_of(*this, first) + static_cast<std::uint64_t>(later / each) * chunk_bytes() +
         memory_of(*this, later % each);
}

Expected<std::unique_ptr<DeviceBlocks>> DeviceBlocks::create(const DeviceBlocksShape& shape,
                                                             std::vector<BlockDevice> devices) {
  std::unique_ptr<DeviceBlocks> blocks(new DeviceBlocks(shape, std::move(devices)));
  MR_RETURN_IF_ERROR(blocks->add_chunk(shape.first, true));
  return blocks;
}

/// press: the budgets may make others give way.
Status DeviceBlocks::add_chunk(std::int64_t blocks, bool press) {
  if (blocks <= 0) return full();
  const std::uint64_t bytes = static_cast<std::uint64_t>(blocks) * shape_.block_bytes,
                      taken = memory_of(shape_, blocks);
  Chunk chunk;
  for (const BlockDevice& one : devices_) {
    const device::OnGpu on(one.device);
    Memory& memory = chunk.memory.emplace_back();
    MR_ASSIGN_OR_RETURN(memory.reservation, one.vram.reserve("kv", press ? taken : 0));
    if (!press && !memory.reservation.try_grow(taken)) return full();
    MR_ASSIGN_OR_RETURN(memory.bytes, device::DeviceBuffer::allocate(bytes));
  }
  for (std::int64_t i = blocks; i-- > 0;)
    chunk.free.push_back(chunk.memory.front().bytes.data() + static_cast<std::uint64_t>(i) * shape_.block_bytes);
  chunk.blocks = blocks;
  chunks_.push_back(std::move(chunk));
  return {};
}

Expected<std::byte*> DeviceBlocks::allocate(bool press) {
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

void DeviceBlocks::release(std::byte* block) {
  std::find_if(chunks_.begin(), chunks_.end(), [block](const Chunk& chunk) {
    return chunk.holds(block);
  })->free.push_back(block);
}

void DeviceBlocks::trim() {
  if (chunks_.empty()) return;
  const auto empty = [](const Chunk& chunk) { return static_cast<std::int64_t>(chunk.free.size()) == chunk.blocks; };
  chunks_.erase(std::remove_if(chunks_.begin() + 1, chunks_.end(), empty), chunks_.end());
}

const std::byte* DeviceBlocks::on_device(std::size_t device, const std::byte* block) const {
  const auto chunk =
      std::find_if(chunks_.begin(), chunks_.end(), [block](const Chunk& one) { return one.holds(block); });
  return chunk->memory[device].bytes.data() + (block - chunk->memory.front().bytes.data());
}

Status DeviceBlocks::read(const std::byte* block, std::byte* out, std::size_t bytes) {
  const std::size_t each = bytes_of_each(bytes);
  for (std::size_t d = 0; d * each < bytes; ++d)
    MR_RETURN_IF_ERROR(device::read_device(out + d * each, on_device(d, block), each));
  return {};
}

Status DeviceBlocks::write(std::byte* block, const std::byte* in, std::size_t bytes) {
  const std::size_t each = bytes_of_each(bytes);
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    const device::OnGpu on(devices_[d].device);
    const std::byte* const from = each == bytes ? in : in + d * each;
    MR_RETURN_IF_ERROR(device::write_device(const_cast<std::byte*>(on_device(d, block)), from, each));
  }
  return {};
}

Status DeviceBlocks::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    const device::OnGpu on(devices_[d].device);
    MR_RETURN_IF_ERROR(
        device::move_on_device(const_cast<std::byte*>(on_device(d, to)), on_device(d, from), bytes_of_each(bytes)));
  }
  return {};
}

std::int64_t DeviceBlocks::made() const {
  std::int64_t blocks = 0;
  for (const Chunk& chunk : chunks_) blocks += chunk.blocks;
  return blocks;
}

}  // namespace millrace::exec

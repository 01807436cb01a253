#include <cstring>
#include <unordered_map>

#include "base/bytes.h"
#include "kv/sequence.h"

namespace millrace::kv {

std::int64_t KvShape::bytes_per_token() const {
  return 2 * layers * kv_heads * head_dim * (info(dtype).block_bytes / info(dtype).block_elements);
}

struct BlockPool::Impl {
  struct Block {
    // In this order, so that the memory goes before its reservation: the budget never promises bytes still held.
    residency::Reservation reservation;
    device::HostBuffer memory;
  };

  Impl(KvShape kv_shape, residency::Budget& kv_budget) : shape(kv_shape), budget(&kv_budget) {}
  Impl(KvShape kv_shape, std::unique_ptr<BlockMemory> memory) : shape(kv_shape), elsewhere(std::move(memory)) {}

  /// What a block really takes: the kernel backs whole pages, and the budget counts what the kernel counts.
  std::uint64_t memory_bytes() const {
    return round_up(static_cast<std::uint64_t>(shape.block_bytes()), device::kPageBytes);
  }

  KvShape shape;
  residency::Budget* budget = nullptr;  // of host blocks
  std::unique_ptr<BlockMemory> elsewhere;
  std::int64_t elsewhere_in_use = 0;
  std::unordered_map<std::byte*, Block> in_use;
  std::vector<Block> free;
};

BlockPool::BlockPool(KvShape shape, residency::Budget& budget) : impl_(std::make_unique<Impl>(shape, budget)) {}

BlockPool::BlockPool(KvShape shape, std::unique_ptr<BlockMemory> memory)
    : impl_(std::make_unique<Impl>(shape, std::move(memory))) {}

BlockPool::~BlockPool() = default;

const KvShape& BlockPool::shape() const { return impl_->shape; }

Expected<std::byte*> BlockPool::allocate() {
  if (impl_->elsewhere != nullptr) {
    Expected<std::byte*> block = impl_->elsewhere->allocate();
    impl_->elsewhere_in_use += block.ok() ? 1 : 0;
    return block;
  }
  Impl::Block block;
  if (!impl_->free.empty()) {
    block = std::move(impl_->free.back());
    impl_->free.pop_back();
    std::memset(block.memory.data(), 0, static_cast<std::size_t>(impl_->shape.block_bytes()));
  } else {
    MR_ASSIGN_OR_RETURN(block.reservation, impl_->budget->reserve("kv", impl_->memory_bytes()));
    MR_ASSIGN_OR_RETURN(block.memory, device::HostBuffer::reserve(impl_->memory_bytes(), device::Pages::normal));
  }
  std::byte* const data = block.memory.data();
  impl_->in_use.emplace(data, std::move(block));
  return data;
}

void BlockPool::release(std::byte* block) {
  if (impl_->elsewhere != nullptr) {
    impl_->elsewhere->release(block);
    --impl_->elsewhere_in_use;
    return;
  }
  const auto found = impl_->in_use.find(block);
  MR_ASSERT(found != impl_->in_use.end());
  impl_->free.push_back(std::move(found->second));
  impl_->in_use.erase(found);
}

void BlockPool::trim() { impl_->free.clear(); }

std::int64_t BlockPool::blocks_in_use() const {
  return static_cast<std::int64_t>(impl_->in_use.size()) + impl_->elsewhere_in_use;
}

Status BlockPool::read(const std::byte* block, std::byte* out) const {
  const auto bytes = static_cast<std::size_t>(impl_->shape.block_bytes());
  if (impl_->elsewhere != nullptr) return impl_->elsewhere->read(block, out, bytes);
  std::memcpy(out, block, bytes);
  return {};
}

Status BlockPool::write(std::byte* block, const std::byte* in) {
  const auto bytes = static_cast<std::size_t>(impl_->shape.block_bytes());
  if (impl_->elsewhere != nullptr) return impl_->elsewhere->write(block, in, bytes);
  std::memcpy(block, in, bytes);
  return {};
}

}  // namespace millrace::kv

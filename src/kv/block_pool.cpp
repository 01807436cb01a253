#include <cstring>
#include <unordered_map>

#include "base/bytes.h"
#include "kv/sequence.h"

namespace millrace::kv {

std::int64_t KvShape::bytes_per_token() const { return 2 * layers * kv_heads * row_bytes(dtype, head_dim); }

struct BlockPool::Impl {
  struct Block {
    std::int64_t users = 1;
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
  std::int64_t bound = 0;
  std::function<bool()> reclaimer;
  std::unordered_map<const std::byte*, Block> in_use;  // elsewhere: without memory of their own
  std::vector<Block> free;

  Expected<std::byte*> allocate(bool press);
  Expected<std::byte*> allocate_here(bool press);
};

Expected<std::byte*> BlockPool::Impl::allocate_here(bool press) {
  Block block;
  if (!free.empty()) {
    block = std::move(free.back());
    free.pop_back();
    std::memset(block.memory.data(), 0, static_cast<std::size_t>(shape.block_bytes()));
  } else {
    MR_ASSIGN_OR_RETURN(block.reservation, budget->reserve("kv", press ? memory_bytes() : 0));
    if (!press && !block.reservation.try_grow(memory_bytes()))
      return error(Code::out_of_budget, "no memory is free for another block of the KV cache");
    MR_ASSIGN_OR_RETURN(block.memory, device::HostBuffer::reserve(memory_bytes(), device::Pages::normal));
  }
  block.users = 1;
  std::byte* const data = block.memory.data();
  in_use.emplace(data, std::move(block));
  return data;
}

Expected<std::byte*> BlockPool::Impl::allocate(bool press) {
  if (bound > 0 && static_cast<std::int64_t>(in_use.size()) >= bound)
    return error(Code::out_of_budget, "all {} blocks of the KV cache are taken; raise --ctx or ask for less at once",
                 bound);
  if (elsewhere == nullptr) return allocate_here(press);
  MR_ASSIGN_OR_RETURN(std::byte* const block, elsewhere->allocate(press));
  in_use.emplace(block, Block());
  return block;
}

BlockPool::BlockPool(KvShape shape, residency::Budget& budget) : impl_(std::make_unique<Impl>(shape, budget)) {}

BlockPool::BlockPool(KvShape shape, std::unique_ptr<BlockMemory> memory)
    : impl_(std::make_unique<Impl>(shape, std::move(memory))) {}

BlockPool::~BlockPool() = default;

const KvShape& BlockPool::shape() const { return impl_->shape; }

Expected<std::byte*> BlockPool::allocate() {
  const auto full = [](const Expected<std::byte*>& block) {
    return !block.ok() && block.status().code() == Code::out_of_budget;
  };
  Expected<std::byte*> block = impl_->allocate(false);
  while (full(block) && impl_->reclaimer && impl_->reclaimer()) block = impl_->allocate(false);
  // What was kept of ended conversations went first; now weights give way.
  return full(block) ? impl_->allocate(true) : std::move(block);
}

void BlockPool::retain(std::byte* block) {
  const auto found = impl_->in_use.find(block);
  MR_ASSERT(found != impl_->in_use.end());
  ++found->second.users;
}

void BlockPool::release(std::byte* block) {
  const auto found = impl_->in_use.find(block);
  MR_ASSERT(found != impl_->in_use.end());
  if (--found->second.users > 0) return;
  if (impl_->elsewhere != nullptr)
    impl_->elsewhere->release(block);
  else
    impl_->free.push_back(std::move(found->second));
  impl_->in_use.erase(found);
}

std::int64_t BlockPool::users(const std::byte* block) const {
  const auto found = impl_->in_use.find(block);
  return found == impl_->in_use.end() ? 0 : found->second.users;
}

void BlockPool::set_bound(std::int64_t blocks) { impl_->bound = blocks; }
std::int64_t BlockPool::bound() const { return impl_->bound; }
void BlockPool::set_reclaimer(std::function<bool()> let_go) { impl_->reclaimer = std::move(let_go); }

void BlockPool::trim() {
  impl_->free.clear();
  if (impl_->elsewhere != nullptr) impl_->elsewhere->trim();
}

std::int64_t BlockPool::blocks_in_use() const { return static_cast<std::int64_t>(impl_->in_use.size()); }

bool BlockPool::on_host() const { return impl_->elsewhere == nullptr; }

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

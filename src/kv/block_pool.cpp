#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "kv/sequence.h"

namespace millrace::kv {
namespace {

/// The blocks of one group.
class GroupBlocks {
 public:
  GroupBlocks(const Group& group, residency::Budget* budget, std::unique_ptr<BlockMemory> memory)
      : bytes_(static_cast<std::size_t>(group.block_bytes())), budget_(budget), elsewhere_(std::move(memory)) {}

  struct Block {
    std::int64_t users = 1;
    // In this order, so that the memory goes before its reservation: the budget never promises bytes still held.
    residency::Reservation reservation;
    device::HostBuffer memory;
  };

  std::int64_t bound = 0;
  std::unordered_map<const std::byte*, Block> in_use;  // elsewhere: without memory of their own

  std::size_t bytes() const { return bytes_; }
  bool at_bound() const { return bound > 0 && static_cast<std::int64_t>(in_use.size()) >= bound; }
  BlockMemory* elsewhere() const { return elsewhere_.get(); }
  Expected<std::byte*> allocate(bool press);
  void release(std::byte* block);
  void trim();

 private:
  /// What a block really takes: the kernel backs whole pages, and the budget counts what the kernel counts.
  std::uint64_t memory_bytes() const { return round_up(bytes_, device::kPageBytes); }
  Expected<std::byte*> allocate_here(bool press);

  std::size_t bytes_;
  residency::Budget* budget_;  // of host blocks
  std::unique_ptr<BlockMemory> elsewhere_;
  std::vector<Block> free_;
};

Expected<std::byte*> GroupBlocks::allocate_here(bool press) {
  Block block;
  if (!free_.empty()) {
    block = std::move(free_.back());
    free_.pop_back();
    std::memset(block.memory.data(), 0, bytes_);
  } else {
    MR_ASSIGN_OR_RETURN(block.reservation, budget_->reserve("kv", press ? memory_bytes() : 0));
    if (!press && !block.reservation.try_grow(memory_bytes()))
      return error(Code::out_of_budget, "no memory is free for another block of the KV cache");
    MR_ASSIGN_OR_RETURN(block.memory, device::HostBuffer::reserve(memory_bytes(), device::Pages::normal));
  }
  block.users = 1;
  std::byte* const data = block.memory.data();
  in_use.emplace(data, std::move(block));
  return data;
}

Expected<std::byte*> GroupBlocks::allocate(bool press) {
  if (at_bound())
    return error(Code::out_of_budget, "all {} blocks of the KV cache are taken; raise --ctx or ask for less at once",
                 bound);
  if (elsewhere_ == nullptr) return allocate_here(press);
  MR_ASSIGN_OR_RETURN(std::byte* const block, elsewhere_->allocate(press));
  in_use.emplace(block, Block());
  return block;
}

void GroupBlocks::release(std::byte* block) {
  const auto found = in_use.find(block);
  MR_ASSERT(found != in_use.end());
  if (--found->second.users > 0) return;
  if (elsewhere_ != nullptr)
    elsewhere_->release(block);
  else
    free_.push_back(std::move(found->second));
  in_use.erase(found);
}

void GroupBlocks::trim() {
  free_.clear();
  if (elsewhere_ != nullptr) elsewhere_->trim();
}

bool full(const Expected<std::byte*>& block) { return !block.ok() && block.status().code() == Code::out_of_budget; }

}  // namespace

struct BlockPool::Impl {
  Layout layout;
  std::vector<GroupBlocks> groups;
  Reclaimer reclaimer;
  std::map<std::uint64_t, const SequenceState*> sequences;  // that live, by number
  std::set<std::uint64_t> kept;

  /// Has one kept block of the group, or of another, let go of, whose memory is there for any group then.
  bool make_room(std::size_t group);
};

bool BlockPool::Impl::make_room(std::size_t group) {
  if (!reclaimer) return false;
  if (reclaimer(group)) return true;
  if (groups[group].at_bound()) return false;
  for (std::size_t other = 0; other < groups.size(); ++other) {
    if (other == group || !reclaimer(other)) continue;
    groups[other].trim();
    return true;
  }
  return false;
}

BlockPool::BlockPool(Layout layout, residency::Budget& budget) : impl_(std::make_unique<Impl>()) {
  for (const Group& group : layout.groups()) impl_->groups.emplace_back(group, &budget, nullptr);
  impl_->layout = std::move(layout);
}

BlockPool::BlockPool(Layout layout, std::vector<std::unique_ptr<BlockMemory>> memory)
    : impl_(std::make_unique<Impl>()) {
  MR_ASSERT(memory.size() == layout.groups().size());
  for (std::size_t g = 0; g < memory.size(); ++g)
    impl_->groups.emplace_back(layout.groups()[g], nullptr, std::move(memory[g]));
  impl_->layout = std::move(layout);
}

BlockPool::~BlockPool() = default;

const Layout& BlockPool::layout() const { return impl_->layout; }
const std::map<std::uint64_t, const SequenceState*>& BlockPool::sequences() const { return impl_->sequences; }
std::map<std::uint64_t, const SequenceState*>& BlockPool::living() { return impl_->sequences; }
void BlockPool::keep(std::uint64_t number) { impl_->kept.insert(number); }
void BlockPool::drop(std::uint64_t number) { impl_->kept.erase(number); }
const std::set<std::uint64_t>& BlockPool::kept() const { return impl_->kept; }

Expected<std::byte*> BlockPool::allocate(std::size_t group) {
  GroupBlocks& blocks = impl_->groups[group];
  Expected<std::byte*> block = blocks.allocate(false);
  if (full(block) && !blocks.at_bound() && groups() > 1) {  // what other groups have to spare
    for (GroupBlocks& other : impl_->groups)
      if (&other != &blocks) other.trim();
    block = blocks.allocate(false);
  }
  while (full(block) && impl_->make_room(group)) block = blocks.allocate(false);
  // What was kept of ended conversations went first; now weights give way.
  return full(block) ? blocks.allocate(true) : std::move(block);
}

Expected<std::byte*> BlockPool::allocate_spare(std::size_t group) {
  GroupBlocks& blocks = impl_->groups[group];
  Expected<std::byte*> block = blocks.allocate(false);
  while (full(block) && impl_->reclaimer && impl_->reclaimer(group)) block = blocks.allocate(false);
  return block;
}

void BlockPool::retain(std::size_t group, std::byte* block) {
  const auto found = impl_->groups[group].in_use.find(block);
  MR_ASSERT(found != impl_->groups[group].in_use.end());
  ++found->second.users;
}

void BlockPool::release(std::size_t group, std::byte* block) { impl_->groups[group].release(block); }

std::int64_t BlockPool::users(std::size_t group, const std::byte* block) const {
  const auto found = impl_->groups[group].in_use.find(block);
  return found == impl_->groups[group].in_use.end() ? 0 : found->second.users;
}

void BlockPool::set_bound(std::size_t group, std::int64_t blocks) { impl_->groups[group].bound = blocks; }
std::int64_t BlockPool::bound(std::size_t group) const { return impl_->groups[group].bound; }
void BlockPool::set_reclaimer(Reclaimer let_go) { impl_->reclaimer = std::move(let_go); }

void BlockPool::trim() {
  for (GroupBlocks& group : impl_->groups) group.trim();
}

std::int64_t BlockPool::blocks_in_use(std::size_t group) const {
  return static_cast<std::int64_t>(impl_->groups[group].in_use.size());
}

std::int64_t BlockPool::blocks_in_use() const {
  std::int64_t blocks = 0;
  for (std::size_t g = 0; g < groups(); ++g) blocks += blocks_in_use(g);
  return blocks;
}

bool BlockPool::on_host() const { return impl_->groups.empty() || impl_->groups.front().elsewhere() == nullptr; }

Status BlockPool::read(std::size_t group, const std::byte* block, std::byte* out) const {
  const GroupBlocks& blocks = impl_->groups[group];
  if (blocks.elsewhere() != nullptr) return blocks.elsewhere()->read(block, out, blocks.bytes());
  std::memcpy(out, block, blocks.bytes());
  return {};
}

Status BlockPool::write(std::size_t group, std::byte* block, const std::byte* in) {
  const GroupBlocks& blocks = impl_->groups[group];
  if (blocks.elsewhere() != nullptr) return blocks.elsewhere()->write(block, in, blocks.bytes());
  std::memcpy(block, in, blocks.bytes());
  return {};
}

Status BlockPool::copy(std::size_t group, std::byte* to, const std::byte* from) {
  const GroupBlocks& blocks = impl_->groups[group];
  if (blocks.elsewhere() != nullptr) return blocks.elsewhere()->copy(to, from, blocks.bytes());
  std::memcpy(to, from, blocks.bytes());
  return {};
}

}  // namespace millrace::kv

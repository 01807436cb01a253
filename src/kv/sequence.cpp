#include "kv/sequence.h"

#include <algorithm>

namespace millrace::kv {
namespace {

std::int64_t blocks_for(std::int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace

SequenceState::SequenceState(std::shared_ptr<BlockPool> pool) : pool_(std::move(pool)) {}

SequenceState::~SequenceState() {
  for (std::byte* block : blocks_) pool_->release(block);
}

SequenceState::SequenceState(SequenceState&& other) noexcept
    : pool_(other.pool_),  // NOLINT(performance-move-constructor-init): what was moved from stays usable
      blocks_(std::move(other.blocks_)),
      length_(std::exchange(other.length_, 0)) {
  other.blocks_.clear();
}

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(blocks_, other.blocks_);
  std::swap(length_, other.length_);
  return *this;
}

const KvShape& SequenceState::shape() const { return pool_->shape(); }

void SequenceState::share(std::byte* block) {
  MR_ASSERT(length_ == blocks() * kBlockTokens);
  pool_->retain(block);
  blocks_.push_back(block);
  length_ += kBlockTokens;
}

Status SequenceState::copy(const std::byte* block, std::int64_t tokens) {
  MR_ASSERT(length_ == blocks() * kBlockTokens && tokens <= kBlockTokens);
  MR_ASSIGN_OR_RETURN(std::byte* const own, pool_->allocate());
  std::vector<std::byte> bytes(static_cast<std::size_t>(shape().block_bytes()));
  Status status = pool_->read(block, bytes.data());
  if (status.ok()) status = pool_->write(own, bytes.data());
  if (!status.ok()) {
    pool_->release(own);
    return status;
  }
  blocks_.push_back(own);
  length_ += tokens;
  return {};
}

/// A copy in place of the block that length() lies in, where others use it too.
Status SequenceState::own_last_block() {
  const std::int64_t within = length_ % kBlockTokens;
  if (within == 0 || pool_->users(blocks_[static_cast<std::size_t>(length_ / kBlockTokens)]) == 1) return {};
  MR_ASSERT(blocks() == blocks_for(length_));
  std::byte* const shared = blocks_.back();
  blocks_.pop_back();
  length_ -= within;
  if (Status status = copy(shared, within); !status.ok()) {
    blocks_.push_back(shared);
    length_ += within;
    return status;
  }
  pool_->release(shared);
  return {};
}

Status SequenceState::reserve(std::int64_t tokens) {
  if (tokens > length_) MR_RETURN_IF_ERROR(own_last_block());
  const std::size_t before = blocks_.size();
  while (blocks() < blocks_for(tokens)) {
    Expected<std::byte*> block = pool_->allocate();
    if (!block.ok()) {
      while (blocks_.size() > before) {
        pool_->release(blocks_.back());
        blocks_.pop_back();
      }
      return block.status().with_context(fmt::format("no room to remember {} tokens", tokens));
    }
    blocks_.push_back(*block);
  }
  return {};
}

void SequenceState::set_length(std::int64_t tokens) {
  MR_ASSERT(tokens >= 0 && blocks_for(tokens) <= blocks());
  length_ = tokens;
}

void SequenceState::truncate(std::int64_t tokens) {
  MR_ASSERT(tokens >= 0);
  length_ = std::min(length_, tokens);
  while (blocks() > blocks_for(length_)) {
    pool_->release(blocks_.back());
    blocks_.pop_back();
  }
}

// Inside a block, a layer is K [kv_heads, head_dim, kBlockTokens], then V [kv_heads, kBlockTokens, head_dim]. A head of
// K and a head of V take the same bytes, so V is simply kv_heads heads further on.
std::byte* SequenceState::k(std::int64_t block, std::int64_t layer, std::int64_t kv_head) const {
  const KvShape& shape = pool_->shape();
  const std::int64_t head_bytes = shape.block_bytes() / (2 * shape.layers * shape.kv_heads);
  return blocks_[static_cast<std::size_t>(block)] + (2 * layer * shape.kv_heads + kv_head) * head_bytes;
}

std::byte* SequenceState::v(std::int64_t block, std::int64_t layer, std::int64_t kv_head) const {
  return k(block, layer, kv_head + pool_->shape().kv_heads);
}

}  // namespace millrace::kv

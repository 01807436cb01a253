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

Status SequenceState::reserve(std::int64_t tokens) {
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

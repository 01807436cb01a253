#include "kv/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>

namespace millrace::kv {
namespace {

constexpr std::int64_t kLeastCopied = 8;  // positions; fewer are computed as fast as a block is copied

std::uint64_t hash_of(std::span<const Token> tokens) { return XXH3_64bits(tokens.data(), tokens.size_bytes()); }

}  // namespace

PrefixCache::PrefixCache(std::shared_ptr<BlockPool> pool) : pool_(std::move(pool)) {
  pool_->set_reclaimer([this] { return let_go(); });
}

PrefixCache::~PrefixCache() {
  pool_->set_reclaimer({});
  clear();
  // What sequences still use stays with them.
  while (!root_.children.empty()) {
    Node* leaf = root_.children.begin()->second.get();
    while (!leaf->children.empty()) leaf = leaf->children.begin()->second.get();
    remove(*leaf);
  }
}

PrefixCache::Node* PrefixCache::child(Node& node, Tokens block) {
  const auto [first, last] = node.children.equal_range(hash_of(block));
  const auto found = std::find_if(first, last, [&](const auto& entry) {
    return std::equal(block.begin(), block.end(), entry.second->tokens.begin());
  });
  return found == last ? nullptr : found->second.get();
}

/// The node that stands for these tokens, or null. Marks the way as used.
PrefixCache::Node* PrefixCache::find(Tokens whole_blocks) {
  Node* node = &root_;
  for (; node != nullptr && !whole_blocks.empty(); whole_blocks = whole_blocks.subspan(kBlockTokens)) {
    node = child(*node, whole_blocks.first(kBlockTokens));
    if (node != nullptr) node->tick = ++tick_;
  }
  return node;
}

std::int64_t PrefixCache::extend(SequenceState& state, Tokens tokens, std::int64_t limit) {
  const std::int64_t before = state.length();
  limit = std::min(limit, static_cast<std::int64_t>(tokens.size()));
  if (before % kBlockTokens != 0 || before >= limit || state.blocks() * kBlockTokens != before) return 0;
  Node* node = find(tokens.first(static_cast<std::size_t>(before)));
  if (node == nullptr) return 0;
  Tokens rest = tokens.subspan(static_cast<std::size_t>(before), static_cast<std::size_t>(limit - before));
  while (static_cast<std::int64_t>(rest.size()) >= kBlockTokens) {
    Node* const next = child(*node, rest.first(kBlockTokens));
    if (next == nullptr) break;
    next->tick = ++tick_;
    state.share(next->block);
    rest = rest.subspan(kBlockTokens);
    node = next;
  }
  Node* best = nullptr;
  std::int64_t most = kLeastCopied - 1;
  for (const auto& [hash, next] : node->children) {
    const auto end = rest.begin() + std::min<std::ptrdiff_t>(std::ssize(rest), kBlockTokens);
    const auto agreed = std::mismatch(rest.begin(), end, next->tokens.begin()).first - rest.begin();
    if (agreed > most) {
      most = agreed;
      best = next.get();
    }
  }
  if (best != nullptr) {
    best->tick = ++tick_;
    pool_->retain(best->block);                           // so that making room for the copy does not let go of it
    const Status copied = state.copy(best->block, most);  // without room it is computed as any other
    pool_->release(best->block);
    (void)copied;
  }
  shared_ += state.length() - before;
  return state.length() - before;
}

void PrefixCache::enter(const SequenceState& state, Tokens tokens) {
  Node* node = &root_;
  for (std::int64_t i = 0; i < state.length() / kBlockTokens; ++i) {
    const Tokens block = tokens.subspan(static_cast<std::size_t>(i * kBlockTokens), kBlockTokens);
    Node* next = child(*node, block);
    if (next == nullptr) {
      auto made = std::make_unique<Node>();
      made->parent = node;
      std::copy(block.begin(), block.end(), made->tokens.begin());
      made->block = state.block(i);
      pool_->retain(made->block);
      ++blocks_;
      next = made.get();
      node->children.emplace(hash_of(block), std::move(made));
    }
    next->tick = ++tick_;
    node = next;
  }
}

void PrefixCache::oldest_leaf(Node& node, Node*& oldest) const {
  for (const auto& [hash, next] : node.children) oldest_leaf(*next, oldest);
  if (!node.children.empty() || &node == &root_ || pool_->users(node.block) > 1) return;
  if (oldest == nullptr || node.tick < oldest->tick) oldest = &node;
}

bool PrefixCache::let_go() {
  Node* oldest = nullptr;
  oldest_leaf(root_, oldest);
  if (oldest == nullptr) return false;
  remove(*oldest);
  return true;
}

void PrefixCache::clear() {
  while (let_go()) {
  }
}

void PrefixCache::remove(Node& node) {
  pool_->release(node.block);
  --blocks_;
  auto& siblings = node.parent->children;
  const auto [first, last] = siblings.equal_range(hash_of(node.tokens));
  siblings.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second.get() == &node; }));
}

}  // namespace millrace::kv

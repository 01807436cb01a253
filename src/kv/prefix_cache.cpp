#include "kv/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>

namespace millrace::kv {
namespace {

constexpr std::int64_t kLeastCopied = 8;  // positions; fewer are computed as fast as a block is copied

std::uint64_t hash_of(std::span<const Token> tokens) { return XXH3_64bits(tokens.data(), tokens.size_bytes()); }

}  // namespace

PrefixCache::PrefixCache(std::shared_ptr<BlockPool> pool) : pool_(std::move(pool)) {
  pool_->set_reclaimer([this](std::size_t group) { return let_go(group); });
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

void PrefixCache::touch(Node& node) { by_use_.splice(by_use_.end(), by_use_, node.place); }

/// The node that stands for these tokens, or null. Marks the way as used.
PrefixCache::Node* PrefixCache::find(Tokens whole_blocks) {
  Node* node = &root_;
  for (; node != nullptr && !whole_blocks.empty(); whole_blocks = whole_blocks.subspan(kBlockTokens)) {
    node = child(*node, whole_blocks.first(kBlockTokens));
    if (node != nullptr) touch(*node);
  }
  return node;
}

/// Whether a token at `length` finds all that it sees: in `state` up to its end, behind it in the nodes of `way`.
bool PrefixCache::goes_on(const SequenceState& state, std::span<Node* const> way, std::int64_t length) const {
  const std::vector<Group>& groups = pool_->layout().groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].is_state() && length % kBlockTokens != 0) return false;
    const auto is_there = [&](std::int64_t i) {
      return (i < state.blocks() ? state.block(g, i) : way[static_cast<std::size_t>(i - state.blocks())]->blocks[g]) !=
             nullptr;
    };
    if (groups[g].ends && length > 0 && !is_there(0)) return false;
    for (std::int64_t i = groups[g].first_seen(length) / kBlockTokens; i < blocks_for(length); ++i)
      if (!is_there(i)) return false;
  }
  return true;
}

/// The successor that agrees with the most of `rest`, and how far; null: none is worth a copy.
std::pair<PrefixCache::Node*, std::int64_t> PrefixCache::best_part(Node& node, Tokens rest) const {
  std::pair<Node*, std::int64_t> best{nullptr, kLeastCopied - 1};
  for (const auto& [hash, next] : node.children) {
    const auto end = rest.begin() + std::min<std::ptrdiff_t>(std::ssize(rest), kBlockTokens);
    const auto agreed = std::mismatch(rest.begin(), end, next->tokens.begin()).first - rest.begin();
    if (agreed > best.second) best = {next.get(), agreed};
  }
  return best;
}

std::int64_t PrefixCache::extend(SequenceState& state, Tokens tokens, std::int64_t limit) {
  const std::int64_t before = state.length();
  limit = std::min(limit, static_cast<std::int64_t>(tokens.size()));
  if (before % kBlockTokens != 0 || before >= limit || state.blocks() * kBlockTokens != before) return 0;
  Node* node = find(tokens.first(static_cast<std::size_t>(before)));
  if (node == nullptr) return 0;
  std::vector<Node*> way;
  Tokens rest = tokens.subspan(static_cast<std::size_t>(before), static_cast<std::size_t>(limit - before));
  while (std::ssize(rest) >= kBlockTokens) {
    Node* const next = child(*node, rest.first(kBlockTokens));
    if (next == nullptr) break;
    way.push_back(next);
    rest = rest.subspan(kBlockTokens);
    node = next;
  }
  auto [part, agreed] = best_part(*node, rest);
  const auto end = [&] { return before + std::ssize(way) * kBlockTokens; };
  if (part != nullptr) {
    way.push_back(part);
    if (!goes_on(state, way, end() - kBlockTokens + agreed)) part = nullptr;
    way.pop_back();
  }
  const std::int64_t known = end();
  while (part == nullptr && !way.empty() && !goes_on(state, way, end())) way.pop_back();
  if (end() < known) state.want_checkpoint(known);
  take(state, way, part, part != nullptr ? agreed : 0);
  const std::int64_t gained = std::max<std::int64_t>(0, state.length() - before);
  shared_ += gained;
  return gained;
}

/// Whole blocks of `way`, then the first positions of a block of `part` (null: none).
void PrefixCache::take(SequenceState& state, std::span<Node* const> way, Node* part, std::int64_t positions) {
  const std::vector<Group>& groups = pool_->layout().groups();
  const std::int64_t end = state.length() + std::ssize(way) * kBlockTokens + positions;
  std::vector<std::byte*> blocks(groups.size());
  for (Node* const node : way) {
    touch(*node);
    for (std::size_t g = 0; g < groups.size(); ++g)  // what a window has passed there is not held
      blocks[g] = state.blocks() >= groups[g].first_seen(end) / kBlockTokens || (groups[g].ends && state.blocks() == 0)
                      ? node->blocks[g]
                      : nullptr;
    state.share(blocks, node->number);
  }
  if (part == nullptr) return;
  touch(*part);
  // So that making room for the copy does not let go of it.
  blocks = part->blocks;
  for (std::size_t g = 0; g < groups.size(); ++g) pool_->retain(g, blocks[g]);
  const Status copied = state.copy(blocks, part->number, positions);  // without room it is computed as any other
  for (std::size_t g = 0; g < groups.size(); ++g) pool_->release(g, blocks[g]);
  if (!copied.ok()) state.rewind(state.length());
}

void PrefixCache::enter(const SequenceState& state, Tokens tokens) {
  Node* node = &root_;
  for (std::int64_t i = 0; i < std::min(state.length(), std::ssize(tokens)) / kBlockTokens; ++i) {
    const Tokens block = tokens.subspan(static_cast<std::size_t>(i * kBlockTokens), kBlockTokens);
    Node* next = child(*node, block);
    if (next == nullptr) {
      auto made = std::make_unique<Node>();
      made->parent = node;
      made->place = by_use_.insert(by_use_.end(), made.get());
      std::copy(block.begin(), block.end(), made->tokens.begin());
      made->blocks.resize(pool_->groups());
      made->number = state.block_names()[static_cast<std::size_t>(i)].number;
      pool_->keep(made->number);
      next = made.get();
      node->children.emplace(hash_of(block), std::move(made));
    }
    for (std::size_t g = 0; g < next->blocks.size(); ++g) {
      if (next->blocks[g] != nullptr || state.block(g, i) == nullptr) continue;
      next->blocks[g] = state.block(g, i);
      pool_->retain(g, next->blocks[g]);
      ++blocks_;
    }
    touch(*next);
    node = next;
  }
}

std::vector<Blocks> PrefixCache::blocks_of(Tokens tokens) {
  std::vector<Blocks> blocks;
  for (Node* node = &root_; std::ssize(tokens) >= kBlockTokens; tokens = tokens.subspan(kBlockTokens)) {
    node = child(*node, tokens.first(kBlockTokens));
    if (node == nullptr) break;
    blocks.emplace_back(node->blocks);
  }
  return blocks;
}

/// The node whose block of the group goes next; null: none may.
PrefixCache::Node* PrefixCache::next_to_go(std::size_t group) const {
  const Group& of = pool_->layout().groups()[group];
  Node* wanted = nullptr;
  for (Node* const node : by_use_) {
    const bool may_go = (!of.keeps_all() || node->children.empty()) && node->blocks[group] != nullptr &&
                        pool_->users(group, node->blocks[group]) == 1;
    if (!may_go) continue;
    // Requests go on from where a beginning ends, or where several part.
    if (!of.is_state() || node->children.size() == 1) return node;
    if (wanted == nullptr) wanted = node;
  }
  return wanted;
}

bool PrefixCache::let_go(std::size_t group) {
  Node* const best = next_to_go(group);
  if (best == nullptr) return false;
  if (pool_->layout().groups()[group].keeps_all()) {
    remove(*best);
    return true;
  }
  pool_->release(group, std::exchange(best->blocks[group], nullptr));
  --blocks_;
  prune(best);
  return true;
}

void PrefixCache::clear() {
  for (std::size_t g = 0; g < pool_->groups(); ++g) {
    while (let_go(g)) {
    }
  }
}

/// Removes the node and those before it as long as they hold nothing and lead nowhere.
void PrefixCache::prune(Node* node) {
  const auto is_empty = [](const Node& of) {
    return of.children.empty() && std::all_of(of.blocks.begin(), of.blocks.end(), [](auto* b) { return b == nullptr; });
  };
  while (node != &root_ && is_empty(*node)) {
    Node* const parent = node->parent;
    remove(*node);
    node = parent;
  }
}

void PrefixCache::remove(Node& node) {
  for (std::size_t g = 0; g < node.blocks.size(); ++g) {
    if (node.blocks[g] == nullptr) continue;
    pool_->release(g, node.blocks[g]);
    --blocks_;
  }
  pool_->drop(node.number);
  by_use_.erase(node.place);
  auto& siblings = node.parent->children;
  const auto [first, last] = siblings.equal_range(hash_of(node.tokens));
  siblings.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second.get() == &node; }));
}

}  // namespace millrace::kv

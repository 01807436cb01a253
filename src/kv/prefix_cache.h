// The prefix cache: a tree of whole KV blocks, indexed by their tokens, so that a common beginning of sequences is
// computed once. A new sequence continues from the longest prefix in the tree: whole blocks are shared, and a block
// that matches in part is copied. If a group has a window, the tree may have evicted older blocks: a prefix is usable
// up to the point where every window sees only blocks that exist, and up to a checkpoint if the model has states. The
// tree has few checkpoints: if it knows more tokens than its checkpoint, the sequence is asked to make one where it
// diverges from the tree. If the pool has no room, the tree evicts what was used longest ago: the last blocks of a
// prefix, or any block of a group with a window. The KV of a position depends only on the tokens up to it (the numerics
// contract), so shared blocks have the same bits as computed ones. Thread-safety: one thread, the one that runs the
// passes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/sequence.h"

namespace millrace::kv {

using Token = std::int32_t;

class PrefixCache {
 public:
  /// Becomes the pool's reclaimer.
  explicit PrefixCache(std::shared_ptr<BlockPool> pool);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// Extends `state`, which holds the first tokens of `tokens`, as far as the tree matches them, at most to `limit`
  /// positions. Returns how many positions it gained.
  std::int64_t extend(SequenceState& state, std::span<const Token> tokens, std::int64_t limit);

  /// Inserts the whole blocks of `state` for these tokens, which are the first of the sequence and computed.
  void enter(const SequenceState& state, std::span<const Token> tokens);

  /// The tree's blocks for these tokens, from the first one on as far as it has them: one per group each time, null if
  /// it was evicted.
  std::vector<Blocks> blocks_of(std::span<const Token> tokens);

  /// Evicts the least recently used block of the group that only the tree uses. In a group that keeps everything, only
  /// a block without successors; of checkpoints, first those where no prompt ends and no prefixes diverge. False: there
  /// is none.
  bool let_go(std::size_t group);
  void clear();  // of all blocks that only the tree uses

  std::int64_t blocks() const { return blocks_; }         // held by the tree, of all groups
  std::int64_t shared_tokens() const { return shared_; }  // positions that extend() gave, ever

 private:
  struct Node {
    Node* parent = nullptr;
    std::array<Token, kBlockTokens> tokens{};
    std::uint64_t number = 0;                                                // of the blocks: BlockName's
    std::vector<std::byte*> blocks;                                          // by group; null: gone
    std::list<Node*>::iterator place;                                        // in by_use_
    std::unordered_multimap<std::uint64_t, std::unique_ptr<Node>> children;  // by hash of their tokens
  };
  using Tokens = std::span<const Token>;

  Node* child(Node& node, Tokens block);
  Node* find(Tokens whole_blocks);
  bool goes_on(const SequenceState& state, std::span<Node* const> way, std::int64_t length) const;
  std::pair<Node*, std::int64_t> best_part(Node& node, Tokens rest) const;
  void take(SequenceState& state, std::span<Node* const> way, Node* part, std::int64_t positions);
  void touch(Node& node);
  Node* next_to_go(std::size_t group) const;
  void prune(Node* node);
  void remove(Node& node);

  std::shared_ptr<BlockPool> pool_;
  std::list<Node*> by_use_;  // all but the root, those used longest ago first
  Node root_;
  std::int64_t blocks_ = 0, shared_ = 0;
};

}  // namespace millrace::kv

// Beginnings that sequences have in common, computed once: a tree of whole KV blocks by the tokens they stand for. A
// new sequence goes on from the longest beginning the tree holds: whole blocks are shared, a block that agrees in part
// is copied. Where a group has a window, the tree may have lost blocks behind it: a beginning is of use up to where
// every window sees only blocks that are there, and up to a checkpoint of states, where there are such. The tree has
// few of those: where it knows more tokens than that, the sequence is asked for one where it parts from the tree. The
// tree lets go of what was used longest ago when the pool has no room: the last blocks of a beginning, or a block of a
// group with a window, wherever it stands. The KV of a position depends on the tokens up to it alone (the numerics
// contract), so shared blocks give the same bits as computed ones. Thread-safety: one thread, the one that runs the
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

  /// Lets `state`, which holds the first tokens of `tokens`, go on as far as the tree agrees with them, at most to
  /// `limit` positions. Returns how many positions it gained.
  std::int64_t extend(SequenceState& state, std::span<const Token> tokens, std::int64_t limit);

  /// Enters the whole blocks of `state` that stand for these tokens, the first ones of the sequence: they are computed.
  void enter(const SequenceState& state, std::span<const Token> tokens);

  /// The tree's blocks of these tokens, from the first on as far as it knows them: each time one of each group, null
  /// where it is gone.
  std::vector<Blocks> blocks_of(std::span<const Token> tokens);

  /// Lets go of one block of the group that only the tree uses, the one used longest ago; of a group that keeps all
  /// one whose successors are gone; of checkpoints first those where nothing ends and no beginnings part. False: there
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

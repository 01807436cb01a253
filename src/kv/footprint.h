// How many blocks sequences take at most, so that memory can be planned before there is any. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kv/layout.h"

namespace millrace::kv {

struct Load {
  std::int64_t tokens = 0;     // of all sequences together
  std::int64_t sequences = 1;  // that share them
  std::int64_t pass_rows = 0;  // of all of them, in the passes under way
};

constexpr std::int64_t kMostCheckpoints = 2;  // of states, that a sequence keeps for itself

/// Of a state a sequence needs the one behind its last token and the one that a pass makes, and keeps some checkpoints;
/// some more are the tree's and those on their way to the disk.
/// A group with a window needs, of each sequence, the blocks that the window touches wherever it stands, and those of
/// the rows that passes under way add; not more than one that keeps all. A plain group the first block, and likewise.
inline std::int64_t most_blocks(const Group& group, const Load& load) {
  const std::int64_t all = blocks_for(load.tokens);
  if (group.is_state()) return std::min(all, load.sequences) * (2 + kMostCheckpoints) + kMostCheckpoints;
  if (group.keeps_all()) return all;
  if (group.ends) return std::min(all, load.sequences * 3 + load.pass_rows / kBlockTokens);  // a pass may begin in one
  const std::int64_t of_window = (group.window + kBlockTokens - 3) / kBlockTokens + 2;
  return std::min(all, load.sequences * of_window + load.pass_rows / kBlockTokens);
}

}  // namespace millrace::kv

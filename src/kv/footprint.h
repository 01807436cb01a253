// The most blocks that sequences use, so that memory can be planned before it is allocated. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bytes.h"
#include "kv/layout.h"

namespace millrace::kv {

struct Load {
  std::int64_t tokens = 0;     // of all sequences together
  std::int64_t sequences = 1;  // that share them
  std::int64_t pass_rows = 0;  // of all of them, in the passes in flight
};

constexpr std::int64_t kMostCheckpoints = 2;  // checkpoints of states that a sequence keeps

/// A group of states needs, for each sequence, the state after the last token, the state that a pass writes, and some
/// checkpoints; the prefix tree and blocks waiting for the disk need a few more.
/// A group with a window needs, for each sequence, the blocks that the window touches at any position, and those of the
/// rows that passes in flight add, but not more than a group that keeps everything. A plain group needs the first block
/// and the blocks of the rows.
inline std::int64_t most_blocks(const Group& group, const Load& load) {
  const std::int64_t all = blocks_for(load.tokens);
  if (group.is_state()) return std::min(all, load.sequences) * (2 + kMostCheckpoints) + kMostCheckpoints;
  if (group.keeps_all()) return all;
  if (group.ends) return std::min(all, load.sequences * 3 + load.pass_rows / kBlockTokens);  // a pass may begin in one
  const std::int64_t of_window = (group.window + kBlockTokens - 3) / kBlockTokens + 2;
  return std::min(all, load.sequences * of_window + load.pass_rows / kBlockTokens);
}

/// The most bytes of the blocks of all groups. granule: a block takes whole ones; in host memory, pages.
inline std::uint64_t most_bytes(const Layout& layout, const Load& load, std::uint64_t granule = 1) {
  std::uint64_t bytes = 0;
  for (const Group& group : layout.groups())
    bytes += static_cast<std::uint64_t>(most_blocks(group, load)) *
             round_up(static_cast<std::uint64_t>(group.block_bytes()), granule);
  return bytes;
}

}  // namespace millrace::kv

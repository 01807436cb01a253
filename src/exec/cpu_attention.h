// What the files of the CPU executor's attention share: a call's arguments, and the work on one tile of it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "exec/cpu_executor.h"

namespace millrace::exec {

constexpr std::int64_t kChunkBlocks = kernels::kAttentionChunk / kernels::kKvBlock;

struct CpuExecutor::AttentionCall {
  Attention attention;
  std::int64_t layer = 0, group = 0, slot_floats = 0;
  const float* q = nullptr;  // [rows, heads, head_dim]
  std::int64_t q_stride = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  const float* sinks = nullptr;          // [heads], or null
  const std::int32_t* newest = nullptr;  // [rows]: the last key that each sees; null: its own
  /// [rows]: the place that a window ends at; null: the row's own. Of segments and chunks it is their last row, and the
  /// window as long as they are.
  const std::int32_t* ends = nullptr;
};

/// A tile of rows and one KV head, with the chunks of keys it sees and its partial results.
struct CpuExecutor::AttentionPair {
  AttentionTile tile;
  std::int64_t head = 0;  // of K and V
  std::int64_t first_chunk = 0, chunks = 0, queries = 0;
  std::int64_t first_block = 0, last_block = 0;
  float *acc = nullptr, *max = nullptr, *sum = nullptr;
};

/// One key into column `lane` of its block, [head_dim, 64].
template <typename T>
void scatter(const T* key, std::int64_t count, T* block, std::int64_t lane) {
  for (std::int64_t d = 0; d < count; ++d) block[d * kernels::kKvBlock + lane] = key[d];
}

struct ChannelRange {
  std::int64_t first = 0, count = 0;
};
/// Those channels of a latent, x, into row `lane` of its block, [rows, dim]. q8_0: the range is of whole groups.
void store_latent_channels(const kernels::Table& table, const kv::Group& kv, const float* x, ChannelRange channels,
                           std::int64_t lane, std::byte* block);

/// An index key into place `lane` of its block, [index_dim, rows].
void store_index_key(const kernels::Table& table, const kv::Group& kv, const float* key, std::int64_t lane,
                     std::byte* block);
/// Index keys [first, first + count) of compressed rows into one block, [index_dim, kBlockTokens]. count <=
/// kBlockTokens.
void gather_index_keys(const kv::SequenceState& sequence, std::int64_t layer, std::int64_t first, std::int64_t count,
                       std::byte* to);

/// What a row sees, in the order in which it is gathered: the first `listed` rows of a layer of the layout, or those
/// that are chosen, then the keys of the window from `first_position` on.
struct SeenKeys {
  const std::int32_t* chosen = nullptr;  // null: the first ones
  std::int64_t listed = 0;
  std::int64_t layer = 0;
  std::int64_t first_position = 0;
  std::int64_t count = 0;  // with the window's
};

template <typename PairOf, typename Attend>
void CpuExecutor::run_pairs(const AttentionCall& call, std::int64_t pairs, const PairOf& pair_of,
                            const Attend& attend) {
  if (pairs >= 2 * pool_.threads()) {  // work enough: a thread takes a pair with all its chunks
    pool_.parallel_for(pairs, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t i = begin; i < end; ++i) {
        const AttentionPair pair = pair_of(i, thread);
        for (std::int64_t c = 0; c < pair.chunks; ++c) attend(pair, c, thread);
        merge_chunks(call, pair);
      }
    });
    return;
  }
  // Few pairs: the threads share their chunks.
  std::int64_t most_chunks = 0;
  for (std::int64_t i = 0; i < pairs; ++i) most_chunks = std::max(most_chunks, pair_of(i, i).chunks);
  pool_.parallel_for(pairs * most_chunks, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t task = begin; task < end; ++task) {
      const AttentionPair pair = pair_of(task % pairs, task % pairs);
      if (task / pairs < pair.chunks) attend(pair, task / pairs, thread);
    }
  });
  for (std::int64_t i = 0; i < pairs; ++i) merge_chunks(call, pair_of(i, i));
}

}  // namespace millrace::exec

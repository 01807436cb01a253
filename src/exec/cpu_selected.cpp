// Attention of the CPU executor over the keys that an indexer has chosen: index keys, the choice, and latents gathered
// for the kernels, which take them for a short sequence's. Rows that see no more keys than are chosen go with all
// others (cpu_attention.cpp), and have the same bits there.
#include <algorithm>
#include <cstring>

#include "exec/cpu_attention.h"

namespace millrace::exec {
namespace {

/// Copies a latent out of a block, [64, dim], into place `lane` of another.
void copy_latent(const kv::Group& kv, const std::byte* from, std::int64_t from_lane, std::byte* to, std::int64_t lane) {
  const std::int64_t dim = kv.v_dim;
  const auto copy = [&](std::int64_t first, std::int64_t bytes) {
    std::memcpy(to + first + lane * bytes, from + first + from_lane * bytes, static_cast<std::size_t>(bytes));
  };
  if (kv.dtype != DType::q8_0) return copy(0, row_bytes(kv.dtype, dim));
  copy(0, dim);  // int8 values, and behind those of all tokens their scales
  copy(dim * kv::kBlockTokens, dim / kKvGroup * static_cast<std::int64_t>(sizeof(std::uint16_t)));
}

}  // namespace

void CpuExecutor::store_index(std::int64_t layer, Act key) {
  if (!ready() || rows_ == 0) return;
  const kv::Group& kv = batch_->sequences[static_cast<std::size_t>(batch_->rows[0].sequence)]->layout().group_of(layer);
  const std::int64_t dim = kv.index_dim;
  const float* const keys = data(key);
  for_rows(rows_, dim, [&](std::int64_t begin, std::int64_t end) {
    std::uint16_t halves[kernels::kMostIndexDim];
    for (std::int64_t r = begin; r < end; ++r) {
      const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
      const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(row.sequence)];
      std::byte* const block = sequence.index(row.position / kv::kBlockTokens, layer);
      const std::int64_t lane = row.position % kv::kBlockTokens;
      if (kv.index_dtype() == DType::f32) {
        scatter(keys + r * dim, dim, reinterpret_cast<float*>(block), lane);
        continue;
      }
      table_.f32_to_f16_row(keys + r * dim, dim, halves);
      scatter(halves, dim, reinterpret_cast<std::uint16_t*>(block), lane);
    }
  });
}

/// Rows of the pass that have more keys before them than so many.
std::vector<std::int64_t> CpuExecutor::rows_beyond(std::int64_t keys) const {
  std::vector<std::int64_t> rows;
  for (std::int64_t r = 0; r < rows_; ++r)
    if (batch_->rows[static_cast<std::size_t>(r)].position >= keys) rows.push_back(r);
  return rows;
}

/// Scores of a row's query with the keys of kChunkBlocks blocks from this one on, as far as the row sees.
void CpuExecutor::score_positions(const Indexer& indexer, std::int64_t layer, std::int64_t row,
                                  std::int64_t first_block, const float* q, const float* weights, float* scores) const {
  const kv::BatchRow& of = batch_->rows[static_cast<std::size_t>(row)];
  const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(of.sequence)];
  const std::byte* blocks[kChunkBlocks];
  kernels::IndexScoresArgs args;
  args.count = std::min(kChunkBlocks, of.position / kv::kBlockTokens + 1 - first_block);
  if (args.count <= 0) return;
  for (std::int64_t b = 0; b < args.count; ++b) blocks[b] = sequence.index(first_block + b, layer);
  args.q = q + row * indexer.heads * indexer.head_dim;
  args.weights = weights + row * indexer.heads;
  args.heads = indexer.heads;
  args.dim = indexer.head_dim;
  args.dtype = sequence.layout().group_of(layer).index_dtype();
  args.blocks = blocks;
  args.out = scores + first_block * kv::kBlockTokens;
  table_.index_scores(args);
}

void CpuExecutor::select(Act out, Act q, Act weights, std::int64_t layer, const Indexer& indexer) {
  if (!ready()) return;
  const std::vector<std::int64_t> rows = rows_beyond(indexer.top_k);
  if (!rows.empty() && layout_.index_positions < shape_.max_positions)
    return fail(error(Code::internal, "a choice of {} keys was not prepared", indexer.top_k));
  auto* const chosen = reinterpret_cast<std::int32_t*>(data(out));
  auto* const scores = at<float>(layout_.index_scores);
  auto* const scratch = at<float>(layout_.index_scratch);
  const std::int64_t positions = layout_.index_positions;
  for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(layout_.index_rows)) {
    const std::int64_t count = std::min(layout_.index_rows, std::ssize(rows) - static_cast<std::int64_t>(first));
    std::int64_t chunks = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(rows[first + static_cast<std::size_t>(i)])];
      chunks = std::max(chunks, row.position / kernels::kAttentionChunk + 1);
    }
    const auto row_at = [&](std::int64_t i) { return rows[first + static_cast<std::size_t>(i)]; };
    pool_.parallel_for(count * chunks, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t task = begin; task < end; ++task)
        score_positions(indexer, layer, row_at(task % count), task / count * kChunkBlocks, data(q), data(weights),
                        scores + task % count * positions);
    });
    pool_.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t seen = batch_->rows[static_cast<std::size_t>(row_at(i))].position + 1;
        kernels::largest(scores + i * positions, seen, indexer.top_k, scratch + thread * positions,
                         chosen + row_at(i) * indexer.top_k);
      }
    });
  }
}

/// A row's heads and all chunks of what was chosen for it.
CpuExecutor::AttentionPair CpuExecutor::selected_pair(const AttentionCall& call, std::int64_t row,
                                                      std::int64_t slot) const {
  AttentionPair pair;
  pair.tile = {static_cast<std::int32_t>(row), 1, batch_->rows[static_cast<std::size_t>(row)].sequence};
  pair.chunks = (call.attention.selected + kernels::kAttentionChunk - 1) / kernels::kAttentionChunk;
  pair.queries = call.group;
  pair.acc = at<float>(layout_.partials) + slot * call.slot_floats;
  pair.max = pair.acc + pair.chunks * pair.queries * call.attention.v_dim();
  pair.sum = pair.max + pair.chunks * pair.queries;
  return pair;
}

/// keys: all that were chosen for the pair's row.
void CpuExecutor::attend_selected_chunk(const AttentionCall& call, const AttentionPair& pair, const std::int32_t* keys,
                                        std::int64_t chunk, int thread) const {
  const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(pair.tile.sequence)];
  const kv::Group& kv = sequence.layout().group_of(call.layer);
  std::byte* const gathered =
      at<std::byte>(layout_.selected) + static_cast<std::uint64_t>(thread) * layout_.selected_bytes;
  const std::byte* blocks[kChunkBlocks] = {};
  for (std::int64_t b = 0; b < kChunkBlocks; ++b) blocks[b] = gathered + b * kv.v_head_bytes();
  const std::int64_t first = chunk * kernels::kAttentionChunk;
  const std::int64_t count = std::min(kernels::kAttentionChunk, call.attention.selected - first);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t position = keys[first + i];
    copy_latent(kv, sequence.v(position / kv::kBlockTokens, call.layer, 0), position % kv::kBlockTokens,
                gathered + i / kv::kBlockTokens * kv.v_head_bytes(), i % kv::kBlockTokens);
  }
  const auto last = static_cast<std::int32_t>(call.attention.selected - 1);
  kernels::AttentionArgs args;
  args.head_dim = call.attention.head_dim;
  args.group = call.group;
  args.q = call.q + pair.tile.first_row * call.q_stride;
  args.q_row_stride = call.q_stride;
  args.q_head_stride = args.head_dim;
  args.rows = 1;
  args.positions = &last;
  args.scale = call.attention.scale;
  args.kv_dtype = kv.dtype;
  args.chunk = chunk;
  args.v_blocks = blocks;
  args.v_dim = call.attention.v_dim();
  args.latents = reinterpret_cast<float*>(thread_memory(thread) + layout_.thread_latents);
  args.acc = pair.acc + chunk * pair.queries * args.v_dim;
  args.max = pair.max + chunk * pair.queries;
  args.sum = pair.sum + chunk * pair.queries;
  table_.attention_chunk(args);
}

void CpuExecutor::attend_to_selected(AttentionCall& call, Act selected) {
  attend_to_all(call);  // of the rows that see no more than are chosen
  if (failed()) return;
  const std::vector<std::int64_t> rows = rows_beyond(call.attention.selected);
  if (rows.empty()) return;
  const kv::Group& kv =
      batch_->sequences[static_cast<std::size_t>(batch_->rows[0].sequence)]->layout().group_of(call.layer);
  if (static_cast<std::uint64_t>(kChunkBlocks * kv.v_head_bytes()) > layout_.selected_bytes)
    return fail(error(Code::internal, "attention over {} chosen keys was not prepared", call.attention.selected));
  const auto* const chosen = reinterpret_cast<const std::int32_t*>(data(selected));
  run_pairs(
      call, std::ssize(rows),
      [&](std::int64_t i, std::int64_t slot) { return selected_pair(call, rows[static_cast<std::size_t>(i)], slot); },
      [&](const AttentionPair& pair, std::int64_t chunk, int thread) {
        attend_selected_chunk(call, pair, chosen + pair.tile.first_row * call.attention.selected, chunk, thread);
      });
}

}  // namespace millrace::exec

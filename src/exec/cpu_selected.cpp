// Attention of the CPU executor over keys that are not neighbours: those that an indexer has chosen, or compressed rows
// and a window (cpu_compressed.cpp). Index keys, the choice, and latents gathered for the kernels, which take them for
// a short sequence's; of blocks that are chosen, the kernels take the cache's own. Rows that see no more keys than are
// chosen go with all others (cpu_attention.cpp), and have the same bits there.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "exec/cpu_attention.h"

namespace millrace::exec {
namespace {

/// Copies a latent out of row `from_lane` of a block of `rows`, [rows, dim], into place `lane` of one of kBlockTokens.
void copy_latent(const kv::Group& kv, const std::byte* from, std::int64_t from_lane, std::byte* to, std::int64_t lane) {
  const std::int64_t dim = kv.v_dim;
  const auto copy = [&](std::int64_t from_first, std::int64_t first, std::int64_t bytes) {
    std::memcpy(to + first + lane * bytes, from + from_first + from_lane * bytes, static_cast<std::size_t>(bytes));
  };
  if (kv.dtype != DType::q8_0) return copy(0, 0, row_bytes(kv.dtype, dim));
  copy(0, 0, dim);  // int8 values, and behind those of all tokens their scales
  copy(dim * kv.rows(), dim * kv::kBlockTokens, dim / kKvGroup * static_cast<std::int64_t>(sizeof(std::uint16_t)));
}

template <typename T>
void gather_keys(const kv::SequenceState& sequence, std::int64_t layer, std::int64_t first, std::int64_t count, T* to) {
  const kv::Group& kv = sequence.layout().group_of(layer);
  for (std::int64_t i = 0; i < count;) {
    const kv::RowPlace place = kv::row_place(first + i, kv.ratio);
    const std::int64_t run = std::min(count - i, kv.rows() - place.row);
    const T* const from = reinterpret_cast<const T*>(sequence.index(place.block, layer)) + place.row;
    for (std::int64_t d = 0; d < kv.index_dim; ++d)
      std::copy_n(from + d * kv.rows(), run, to + d * kv::kBlockTokens + i);
    i += run;
  }
}

}  // namespace

void store_index_key(const kernels::Table& table, const kv::Group& kv, const float* key, std::int64_t lane,
                     std::byte* block) {
  const std::int64_t dim = kv.index_dim, stride = kv.rows();
  if (kv.index_dtype() == DType::f32) {
    for (std::int64_t d = 0; d < dim; ++d) reinterpret_cast<float*>(block)[d * stride + lane] = key[d];
    return;
  }
  std::uint16_t halves[kernels::kMostIndexDim];
  table.f32_to_f16_row(key, dim, halves);
  for (std::int64_t d = 0; d < dim; ++d) reinterpret_cast<std::uint16_t*>(block)[d * stride + lane] = halves[d];
}

void gather_index_keys(const kv::SequenceState& sequence, std::int64_t layer, std::int64_t first, std::int64_t count,
                       std::byte* to) {
  if (sequence.layout().group_of(layer).index_dtype() == DType::f32)
    return gather_keys(sequence, layer, first, count, reinterpret_cast<float*>(to));
  gather_keys(sequence, layer, first, count, reinterpret_cast<std::uint16_t*>(to));
}

void CpuExecutor::store_index(std::int64_t layer, Act key) {
  if (!ready() || rows_ == 0) return;
  const kv::Group& kv = batch_->sequences[static_cast<std::size_t>(batch_->rows[0].sequence)]->layout().group_of(layer);
  const std::int64_t dim = kv.index_dim;
  const float* const keys = data(key);
  for_rows(rows_, dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
      const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(row.sequence)];
      store_index_key(table_, kv, keys + r * dim, row.position % kv::kBlockTokens,
                      sequence.index(row.position / kv::kBlockTokens, layer));
    }
  });
}

/// Rows of the pass that have more keys of so many tokens each before them than `keys`.
std::vector<std::int64_t> CpuExecutor::rows_beyond(std::int64_t keys, std::int64_t ratio) const {
  std::vector<std::int64_t> rows;
  for (std::int64_t r = 0; r < rows_; ++r)
    if ((batch_->rows[static_cast<std::size_t>(r)].position + 1) / ratio > keys) rows.push_back(r);
  return rows;
}

/// Queries of an indexer, and the layer whose keys they score.
struct CpuExecutor::IndexQueries {
  Indexer indexer;
  std::int64_t layer = 0;
  const float *q = nullptr, *weights = nullptr;  // [rows, heads * head_dim], [rows, heads]; null: all are 1
};

/// Scores of a row's query with a chunk of keys, as far as the row sees them. Keys of more than one token are first
/// gathered into blocks of kBlockTokens of them.
void CpuExecutor::score_keys(const IndexQueries& queries, std::int64_t row, std::int64_t chunk, float* scores,
                             int thread) const {
  const Indexer& indexer = queries.indexer;
  const kv::BatchRow& of = batch_->rows[static_cast<std::size_t>(row)];
  const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(of.sequence)];
  const kv::Group& kv = sequence.layout().group_of(queries.layer);
  const std::int64_t keys = (of.position + 1) / indexer.ratio, first_block = chunk * kChunkBlocks;
  const std::byte* blocks[kChunkBlocks];
  kernels::IndexScoresArgs args;
  args.count = std::min(kChunkBlocks, kv::blocks_for(keys) - first_block);
  if (args.count <= 0) return;
  args.q = queries.q + row * indexer.heads * indexer.head_dim;
  args.weights = queries.weights == nullptr ? ones_.data() : queries.weights + row * indexer.heads;
  args.heads = indexer.heads;
  args.dim = indexer.head_dim;
  args.dtype = kv.index_dtype();
  args.blocks = blocks;
  args.out = scores + first_block * kv::kBlockTokens;
  if (indexer.ratio == 1) {
    for (std::int64_t b = 0; b < args.count; ++b) blocks[b] = sequence.index(first_block + b, queries.layer);
    return table_.index_scores(args);
  }
  std::byte* const gathered = thread_memory(thread) + layout_.thread_latents;
  const std::int64_t blocks_here = std::exchange(args.count, 1);
  blocks[0] = gathered;
  for (std::int64_t b = 0; b < blocks_here; ++b, args.out += kv::kBlockTokens) {
    const std::int64_t first = (first_block + b) * kv::kBlockTokens;
    gather_index_keys(sequence, queries.layer, first, std::min(kv::kBlockTokens, keys - first), gathered);
    table_.index_scores(args);
  }
}

void CpuExecutor::select(Act out, Act q, Act weights, std::int64_t layer, const Indexer& indexer) {
  if (!ready()) return;
  if (indexer.block > 0) return select_blocks(out, q, layer, indexer);
  const std::vector<std::int64_t> rows = rows_beyond(indexer.top_k, indexer.ratio);
  if (!rows.empty() && layout_.index_positions < shape_.max_positions)
    return fail(error(Code::internal, "a choice of {} keys was not prepared", indexer.top_k));
  if (indexer.ratio > 1 && indexer.head_dim > shape_.latent_dim)
    return fail(
        error(Code::internal, "index keys of {} channels beside latents of {}", indexer.head_dim, shape_.latent_dim));
  const IndexQueries queries{indexer, layer, data(q), weights.buffer < 0 ? nullptr : data(weights)};
  auto* const chosen = reinterpret_cast<std::int32_t*>(data(out));
  auto* const scores = at<float>(layout_.index_scores);
  auto* const scratch = at<float>(layout_.index_scratch);
  const std::int64_t positions = layout_.index_positions;
  const auto keys_of = [&](std::int64_t row) {
    return (batch_->rows[static_cast<std::size_t>(row)].position + 1) / indexer.ratio;
  };
  for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(layout_.index_rows)) {
    const std::int64_t count = std::min(layout_.index_rows, std::ssize(rows) - static_cast<std::int64_t>(first));
    const auto row_at = [&](std::int64_t i) { return rows[first + static_cast<std::size_t>(i)]; };
    std::int64_t chunks = 0;
    for (std::int64_t i = 0; i < count; ++i)
      chunks = std::max(chunks, (keys_of(row_at(i)) - 1) / kernels::kAttentionChunk + 1);
    pool_.parallel_for(count * chunks, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t task = begin; task < end; ++task)
        score_keys(queries, row_at(task % count), task / count, scores + task % count * positions, thread);
    });
    pool_.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t i = begin; i < end; ++i)
        kernels::largest(scores + i * positions, keys_of(row_at(i)), indexer.top_k, scratch + thread * positions,
                         chosen + row_at(i) * indexer.top_k);
    });
  }
}

/// Of all positions that the pass has room for. Those of all heads have it where a token's scores have.
std::int64_t CpuExecutor::most_blocks(const Indexer& indexer) const {
  return (layout_.index_positions + indexer.block - 1) / indexer.block;
}

/// The greatest product of each head's query with a key of each block of a chunk, as far as the row sees them. scores:
/// [heads, most_blocks()].
void CpuExecutor::score_blocks(const IndexQueries& queries, std::int64_t row, std::int64_t chunk, float* scores) const {
  const Indexer& indexer = queries.indexer;
  const kv::BatchRow& of = batch_->rows[static_cast<std::size_t>(row)];
  const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(of.sequence)];
  const std::int64_t first = chunk * kernels::kAttentionChunk, dim = indexer.head_dim;
  const std::int64_t keys = std::min<std::int64_t>(kernels::kAttentionChunk, of.position + 1 - first);
  const std::byte* blocks[kChunkBlocks];
  alignas(64) float products[kernels::kAttentionChunk], query[2 * kernels::kMostIndexDim];
  // A product is the part of it that is above 0, less that of its negative.
  constexpr float kWeights[] = {1, -1};
  kernels::IndexScoresArgs args;
  args.count = kv::blocks_for(keys);
  for (std::int64_t b = 0; b < args.count; ++b) blocks[b] = sequence.index(chunk * kChunkBlocks + b, queries.layer);
  args.q = query;
  args.weights = kWeights;
  args.heads = 2;
  args.dim = dim;
  args.dtype = sequence.layout().group_of(queries.layer).index_dtype();
  args.blocks = blocks;
  args.out = products;
  for (std::int64_t head = 0; head < indexer.heads; ++head) {
    const float* const q = queries.q + (row * indexer.heads + head) * dim;
    std::copy_n(q, dim, query);
    std::transform(q, q + dim, query + dim, [](float x) { return -x; });
    table_.index_scores(args);
    float* const of_head = scores + head * most_blocks(indexer) + first / indexer.block;
    for (std::int64_t at = 0; at < keys; at += indexer.block)
      of_head[at / indexer.block] =
          *std::max_element(products + at, products + std::min<std::int64_t>(at + indexer.block, keys));
  }
}

void CpuExecutor::select_blocks(Act out, Act q, std::int64_t layer, const Indexer& indexer) {
  const std::vector<std::int64_t> rows = rows_beyond(indexer.keys());
  if (!rows.empty() && layout_.index_positions < shape_.max_positions)
    return fail(error(Code::internal, "a choice of {} blocks was not prepared", indexer.top_k));
  const IndexQueries queries{indexer, layer, data(q), nullptr};
  auto* const chosen = reinterpret_cast<std::int32_t*>(data(out));
  auto* const scores = at<float>(layout_.index_scores);
  auto* const scratch = at<float>(layout_.index_scratch);
  const std::int64_t positions = layout_.index_positions, stride = most_blocks(indexer);
  const auto position_of = [&](std::int64_t row) { return batch_->rows[static_cast<std::size_t>(row)].position; };
  for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(layout_.index_rows)) {
    const std::int64_t count = std::min(layout_.index_rows, std::ssize(rows) - static_cast<std::int64_t>(first));
    const auto row_at = [&](std::int64_t i) { return rows[first + static_cast<std::size_t>(i)]; };
    std::int64_t chunks = 0;
    for (std::int64_t i = 0; i < count; ++i)
      chunks = std::max<std::int64_t>(chunks, position_of(row_at(i)) / kernels::kAttentionChunk + 1);
    pool_.parallel_for(count * chunks, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t task = begin; task < end; ++task)
        if (position_of(row_at(task % count)) >= task / count * kernels::kAttentionChunk)
          score_blocks(queries, row_at(task % count), task / count, scores + task % count * positions);
    });
    pool_.parallel_for(count * indexer.heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t row = row_at(task % count), head = task / count, own = position_of(row) / indexer.block;
        float* const of_head = scores + task % count * positions + head * stride;
        std::fill_n(of_head + own + 1 - indexer.local, indexer.local, std::numeric_limits<float>::infinity());
        kernels::largest(of_head, own + 1, indexer.top_k, scratch + thread * positions,
                         chosen + (row * indexer.heads + head) * indexer.top_k);
      }
    });
  }
}

/// A row's heads and all chunks of what is gathered for it.
CpuExecutor::AttentionPair CpuExecutor::gathered_pair(const AttentionCall& call, const SeenKeys& keys, std::int64_t row,
                                                      std::int64_t slot) const {
  AttentionPair pair;
  pair.tile = {static_cast<std::int32_t>(row), 1, batch_->rows[static_cast<std::size_t>(row)].sequence};
  pair.chunks = (keys.count + kernels::kAttentionChunk - 1) / kernels::kAttentionChunk;
  pair.queries = call.group;
  pair.acc = at<float>(layout_.partials) + slot * call.slot_floats;
  pair.max = pair.acc + pair.chunks * pair.queries * call.attention.v_dim();
  pair.sum = pair.max + pair.chunks * pair.queries;
  return pair;
}

/// keys: all that the pair's row sees.
void CpuExecutor::attend_gathered_chunk(const AttentionCall& call, const AttentionPair& pair, const SeenKeys& keys,
                                        std::int64_t chunk, int thread) const {
  const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(pair.tile.sequence)];
  const kv::Layout& layout = sequence.layout();
  const kv::Group& kv = layout.group_of(call.layer);
  std::byte* const gathered =
      at<std::byte>(layout_.selected) + static_cast<std::uint64_t>(thread) * layout_.selected_bytes;
  const std::byte* blocks[kChunkBlocks] = {};
  for (std::int64_t b = 0; b < kChunkBlocks; ++b) blocks[b] = gathered + b * kv.v_head_bytes();
  const std::int64_t first = chunk * kernels::kAttentionChunk;
  const std::int64_t count = std::min(kernels::kAttentionChunk, keys.count - first);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t key = first + i;
    const bool listed = key < keys.listed;
    const std::int64_t layer = listed ? keys.layer : call.layer;
    const kv::Group& from = layout.group_of(layer);
    const std::int64_t number = !listed                  ? keys.first_position + key - keys.listed
                                : keys.chosen != nullptr ? keys.chosen[key]
                                                         : key;
    const kv::RowPlace place = kv::row_place(number, from.ratio);
    copy_latent(from, sequence.v(place.block, layer, 0), place.row, gathered + i / kv::kBlockTokens * kv.v_head_bytes(),
                i % kv::kBlockTokens);
  }
  const auto last = static_cast<std::int32_t>(keys.count - 1);
  kernels::AttentionArgs args = chunk_args(call, pair, chunk);
  args.positions = &last;
  args.v_blocks = blocks;
  args.latents = reinterpret_cast<float*>(thread_memory(thread) + layout_.thread_latents);
  table_.attention_chunk(args);
}

void CpuExecutor::attend_to_selected(AttentionCall& call, Act selected) {
  attend_to_all(call);  // of the rows that see no more than are chosen
  if (failed()) return;
  const std::vector<std::int64_t> rows = rows_beyond(call.attention.most_selected());
  if (rows.empty()) return;
  const auto* const chosen = reinterpret_cast<const std::int32_t*>(data(selected));
  if (call.attention.sees_tail) return attend_to_shared_blocks(call, chosen, rows);
  if (call.attention.selected_block > 0) return attend_to_blocks(call, chosen, rows);
  const kv::Group& kv =
      batch_->sequences[static_cast<std::size_t>(batch_->rows[0].sequence)]->layout().group_of(call.layer);
  if (static_cast<std::uint64_t>(kChunkBlocks * kv.v_head_bytes()) > layout_.selected_bytes)
    return fail(error(Code::internal, "attention over {} chosen keys was not prepared", call.attention.selected));
  const std::int64_t count = call.attention.selected;
  const auto keys_of = [&](std::int64_t row) { return SeenKeys{chosen + row * count, count, call.layer, 0, count}; };
  run_pairs(
      call, std::ssize(rows),
      [&](std::int64_t i, std::int64_t slot) {
        const std::int64_t row = rows[static_cast<std::size_t>(i)];
        return gathered_pair(call, keys_of(row), row, slot);
      },
      [&](const AttentionPair& pair, std::int64_t chunk, int thread) {
        attend_gathered_chunk(call, pair, keys_of(pair.tile.first_row), chunk, thread);
      });
}

/// A chunk of the keys in a row's chosen blocks, one behind the other: `chosen` has the numbers of those of the pair's
/// head, ascending. The last one may be the row's own, of which it sees the keys up to itself.
void CpuExecutor::attend_block_chunk(const AttentionCall& call, const AttentionPair& pair, const std::int32_t* chosen,
                                     std::int64_t chunk) const {
  const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(pair.tile.first_row)];
  const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(row.sequence)];
  const bool has_plain = sequence.layout().plain_group(call.layer) != kv::Place::kNowhere;
  const Attention& attention = call.attention;
  const std::int64_t block = attention.selected_block, parts = block / kv::kBlockTokens,
                     own = row.position / kv::kBlockTokens;
  const std::int64_t behind = chosen[attention.selected / block - 1] == row.position / block
                                  ? block - 1 - row.position % block  // keys of the own block that it does not see
                                  : 0;
  const auto last = static_cast<std::int32_t>(attention.selected - behind - 1);
  const std::byte* k_blocks[kChunkBlocks] = {};
  const std::byte* v_blocks[kChunkBlocks] = {};
  kernels::AttentionArgs args = chunk_args(call, pair, chunk);
  for (std::int64_t b = 0; b < kChunkBlocks && chunk * kChunkBlocks + b <= last / kv::kBlockTokens; ++b) {
    const std::int64_t number = chunk * kChunkBlocks + b, from = chosen[number / parts] * parts + number % parts;
    if (has_plain && (from == 0 || from == own)) {
      k_blocks[b] = sequence.plain(from, call.layer, kv::Part::k, pair.head);
      v_blocks[b] = sequence.plain(from, call.layer, kv::Part::v, pair.head);
      args.plain_blocks |= std::uint32_t{1} << b;
      continue;
    }
    k_blocks[b] = sequence.k(from, call.layer, pair.head);
    v_blocks[b] = sequence.v(from, call.layer, pair.head);
  }
  args.positions = &last;
  args.k_blocks = k_blocks;
  args.v_blocks = v_blocks;
  table_.attention_chunk(args);
}

/// chosen: [rows of the pass, kv_heads, blocks].
void CpuExecutor::attend_to_blocks(AttentionCall& call, const std::int32_t* chosen,
                                   const std::vector<std::int64_t>& rows) {
  const std::int64_t heads = call.attention.kv_heads, blocks = call.attention.selected / call.attention.selected_block;
  run_pairs(
      call, std::ssize(rows) * heads,
      [&](std::int64_t i, std::int64_t slot) {
        const SeenKeys keys{.count = call.attention.selected};
        AttentionPair pair = gathered_pair(call, keys, rows[static_cast<std::size_t>(i / heads)], slot);
        pair.head = i % heads;
        return pair;
      },
      [&](const AttentionPair& pair, std::int64_t chunk, int) {
        attend_block_chunk(call, pair, chosen + (pair.tile.first_row * heads + pair.head) * blocks, chunk);
      });
}

}  // namespace millrace::exec

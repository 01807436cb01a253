// Attention of the CPU executor over small blocks of tokens that an indexer has chosen for all KV heads alike, and the
// tokens behind the last complete block. Their keys and values are gathered for the kernels, which take them for a
// short sequence's.
#include <array>
#include <cstring>

#include "exec/cpu_attention.h"

namespace millrace::exec {
namespace {

/// Numbers of a token's key or value in a block of the cache, one field behind the other (kv/layout.h).
struct Field {
  std::int64_t count = 0, bytes = 0;  // of a token; of each number
};

/// Of formats that lie in whole bytes: the numbers, then their scales.
std::array<Field, 2> fields_of(DType dtype, std::int64_t dim) {
  switch (dtype) {
    case DType::f32:
      return {Field{dim, 4}, Field{}};
    case DType::f16:
      return {Field{dim, 2}, Field{}};
    case DType::q4_0:
      return {Field{dim / 2, 1}, Field{dim / kKvGroup, 2}};
    default:
      return {Field{dim, 1}, Field{dim / kKvGroup, 2}};
  }
}

struct Lanes {
  std::int64_t from = 0, to = 0, count = 0;  // the first of each, and how many
};

template <std::int64_t kBytes>
void copy_columns(const std::byte* from, std::byte* to, std::int64_t columns, std::int64_t column_bytes) {
  for (std::int64_t i = 0; i < columns; ++i)
    std::memcpy(to + i * column_bytes, from + i * column_bytes, static_cast<std::size_t>(kBytes));
}

/// A key's numbers lie kBlockTokens apart.
void copy_keys(const kv::Group& kv, const std::byte* from, std::byte* to, Lanes lanes) {
  for (const Field& field : fields_of(kv.dtype, kv.k_dim)) {
    const std::int64_t column = field.bytes * kv::kBlockTokens, bytes = field.bytes * lanes.count;
    const std::byte* const source = from + lanes.from * field.bytes;
    std::byte* const target = to + lanes.to * field.bytes;
    if (bytes == 8)
      copy_columns<8>(source, target, field.count, column);
    else if (bytes == 4)
      copy_columns<4>(source, target, field.count, column);
    else if (bytes == 16)
      copy_columns<16>(source, target, field.count, column);
    else
      for (std::int64_t i = 0; i < field.count; ++i)
        std::memcpy(target + i * column, source + i * column, static_cast<std::size_t>(bytes));
    from += field.count * column;
    to += field.count * column;
  }
}

/// A value's numbers lie side by side.
void copy_values(const kv::Group& kv, const std::byte* from, std::byte* to, Lanes lanes) {
  for (const Field& field : fields_of(kv.dtype, kv.v_dim)) {
    const std::int64_t token = field.count * field.bytes;
    std::memcpy(to + lanes.to * token, from + lanes.from * token, static_cast<std::size_t>(lanes.count * token));
    from += token * kv::kBlockTokens;
    to += token * kv::kBlockTokens;
  }
}

}  // namespace

/// chosen: the numbers of the row's blocks, ascending. Behind their tokens come those of the tail.
void CpuExecutor::attend_shared_chunk(const AttentionCall& call, const AttentionPair& pair, const std::int32_t* chosen,
                                      std::int64_t chunk, int thread) const {
  const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(pair.tile.first_row)];
  const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(row.sequence)];
  const kv::Group& kv = sequence.layout().group_of(call.layer);
  const Attention& attention = call.attention;
  const std::int64_t block = attention.selected_block, tail = (row.position + 1) / block * block;
  const std::int64_t keys = attention.selected + row.position + 1 - tail, first = chunk * kernels::kAttentionChunk,
                     end = std::min(keys, first + kernels::kAttentionChunk);
  std::byte* const gathered =
      at<std::byte>(layout_.selected) + static_cast<std::uint64_t>(thread) * layout_.selected_bytes;
  const std::byte* k_blocks[kChunkBlocks];
  const std::byte* v_blocks[kChunkBlocks];
  for (std::int64_t b = 0; b < kChunkBlocks; ++b) {
    k_blocks[b] = gathered + b * kv.k_head_bytes();
    v_blocks[b] = gathered + kChunkBlocks * kv.k_head_bytes() + b * kv.v_head_bytes();
  }
  for (std::int64_t key = first; key < end;) {
    const bool listed = key < attention.selected;
    const std::int64_t token = listed ? chosen[key / block] * block : tail, count = listed ? block : keys - key;
    const std::int64_t to = (key - first) / kv::kBlockTokens, from = token / kv::kBlockTokens;
    const Lanes lanes{token % kv::kBlockTokens, key % kv::kBlockTokens, count};
    copy_keys(kv, sequence.k(from, call.layer, pair.head), gathered + to * kv.k_head_bytes(), lanes);
    copy_values(kv, sequence.v(from, call.layer, pair.head),
                gathered + kChunkBlocks * kv.k_head_bytes() + to * kv.v_head_bytes(), lanes);
    key += count;
  }
  const auto last = static_cast<std::int32_t>(keys - 1);
  kernels::AttentionArgs args = chunk_args(call, pair, chunk);
  args.positions = &last;
  args.k_blocks = k_blocks;
  args.v_blocks = v_blocks;
  table_.attention_chunk(args);
}

/// chosen: [rows of the pass, blocks].
void CpuExecutor::attend_to_shared_blocks(AttentionCall& call, const std::int32_t* chosen,
                                          const std::vector<std::int64_t>& rows) {
  const Attention& attention = call.attention;
  const std::int64_t heads = attention.kv_heads, blocks = attention.selected / attention.selected_block;
  const kv::Group& kv =
      batch_->sequences[static_cast<std::size_t>(batch_->rows[0].sequence)]->layout().group_of(call.layer);
  if (static_cast<std::uint64_t>(kChunkBlocks * (kv.k_head_bytes() + kv.v_head_bytes())) > layout_.selected_bytes)
    return fail(error(Code::internal, "attention over {} chosen keys was not prepared", attention.selected));
  run_pairs(
      call, std::ssize(rows) * heads,
      [&](std::int64_t i, std::int64_t slot) {
        const std::int64_t row = rows[static_cast<std::size_t>(i / heads)];
        const std::int64_t tail = (batch_->rows[static_cast<std::size_t>(row)].position + 1) % attention.selected_block;
        AttentionPair pair = gathered_pair(call, SeenKeys{.count = attention.selected + tail}, row, slot);
        pair.head = i % heads;
        return pair;
      },
      [&](const AttentionPair& pair, std::int64_t chunk, int thread) {
        attend_shared_chunk(call, pair, chosen + pair.tile.first_row * blocks, chunk, thread);
      });
}

}  // namespace millrace::exec

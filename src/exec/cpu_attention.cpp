// Rotary positions, the KV cache and attention of the CPU executor.
#include "exec/cpu_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "exec/rope_angles.h"
#include "tensor/blocks.h"
#include "tensor/codec.h"
#include "tensor/kv_codec.h"

namespace millrace::exec {
namespace {

constexpr std::int64_t kFewFloats = 8 * 1024;  // up to this many, the calling thread works alone
static_assert(kernels::kKvBlock == kv::kBlockTokens);
constexpr float kNoSink = -std::numeric_limits<float>::infinity();

}  // namespace

/// What a row's rotary place of this axis has beyond its position.
std::int32_t CpuExecutor::shift_of(std::int64_t row, std::uint8_t axis) const {
  return batch_->pictures.empty() ? 0 : batch_->pictures[static_cast<std::size_t>(row)].shift[axis];
}

/// The position that a row's angle is multiplied by.
double CpuExecutor::place_of(std::int64_t row, const Rope& rope, std::int64_t angle) const {
  const std::int32_t position = at<std::int32_t>(layout_.positions)[row];
  return rope.axes.empty() ? position : position + shift_of(row, rope.axes[static_cast<std::size_t>(angle)]);
}

/// cos and sin of every row's angles, [rows, rotary / 2, 2]: computed once per pass, in double, so that large positions
/// stay exact.
const float* CpuExecutor::rope_table(int index) {
  const auto slot = static_cast<std::size_t>(index);
  const Rope& rope = program_.ropes[slot];
  auto* table = at<float>(layout_.ropes[slot]);
  if (rope_made_[slot]) return table;
  rope_made_[slot] = true;
  const std::int64_t half = rope.rotary / 2;
  constexpr std::int64_t kCostOfAngle = 16;  // a sine and a cosine, in floats moved
  for_rows(rows_, rope.rotary * kCostOfAngle, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t i = 0; i < half; ++i) put_angle(rope, i, place_of(r, rope, i), table + (r * half + i) * 2);
    }
  });
  return table;
}

void CpuExecutor::temper(Act x, const Temperature& temperature) {
  if (!ready()) return;
  const auto* positions = at<std::int32_t>(layout_.positions);
  const std::int64_t cols = cols_of(x);
  float* rows = data(x);
  for_rows(rows_, cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float factor = temperature.at(positions[r]);
      for (std::int64_t i = r * cols; i < (r + 1) * cols; ++i) rows[i] *= factor;
    }
  });
}

void CpuExecutor::rope(Act x, std::int64_t heads, std::int64_t head_dim, int index, bool back) {
  if (!ready()) return;
  const Rope& rope = program_.ropes[static_cast<std::size_t>(index)];
  const float* table = rope_table(index);
  const std::int64_t cols = cols_of(x);
  float* rows = data(x) + (rope.last ? head_dim - rope.rotary : 0);
  for_rows(rows_, cols, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> opposite(back ? static_cast<std::size_t>(rope.rotary) : 0);
    for (std::int64_t r = begin; r < end; ++r) {
      const float* angles = table + r * rope.rotary;
      if (back) {
        for (std::int64_t i = 0; i < rope.rotary; ++i)
          opposite[static_cast<std::size_t>(i)] = i % 2 == 0 ? angles[i] : -angles[i];
        angles = opposite.data();
      }
      for (std::int64_t h = 0; h < heads; ++h)
        table_.rope(rows + r * cols + h * head_dim, angles, rope.rotary, rope.neox);
    }
  });
}

// --- The KV cache ---

namespace {

void store_q8_row(const float* k, const float* v, std::int64_t head_dim, std::int64_t lane, std::byte* k_block,
                  std::byte* v_block) {
  constexpr std::int64_t kGroup = sizeof(BlockQ8_0::qs);
  const std::int64_t groups = head_dim / kGroup, values = head_dim * kernels::kKvBlock;
  auto* k_scales = reinterpret_cast<std::uint16_t*>(k_block + values);
  auto* v_scales = reinterpret_cast<std::uint16_t*>(v_block + values);
  BlockQ8_0 block;
  for (std::int64_t g = 0; g < groups; ++g) {
    encode_row(DType::q8_0, k + g * kGroup, kGroup, reinterpret_cast<std::byte*>(&block));
    scatter(block.qs, kGroup, reinterpret_cast<std::int8_t*>(k_block) + g * kGroup * kernels::kKvBlock, lane);
    k_scales[g * kernels::kKvBlock + lane] = block.d;
    encode_row(DType::q8_0, v + g * kGroup, kGroup, reinterpret_cast<std::byte*>(&block));
    std::memcpy(v_block + lane * head_dim + g * kGroup, block.qs, kGroup);
    v_scales[lane * groups + g] = block.d;
  }
}

/// Both were rotated if they are to be.
void store_q4_row(const float* k, const float* v, std::int64_t head_dim, std::int64_t lane, std::byte* k_block,
                  std::byte* v_block) {
  constexpr std::int64_t kBytes = kKvGroup / 2;
  const std::int64_t groups = head_dim / kKvGroup, bytes = head_dim / 2 * kernels::kKvBlock;
  auto* k_scales = reinterpret_cast<std::uint16_t*>(k_block + bytes);
  auto* v_scales = reinterpret_cast<std::uint16_t*>(v_block + bytes);
  const auto two = [](const KvGroup& group, std::int64_t c) {
    return static_cast<std::byte>((group.q[c] & 15) | (group.q[c + kBytes] & 15) << 4);
  };
  for (std::int64_t g = 0; g < groups; ++g) {
    const KvGroup key = encode_kv_q4(k + g * kKvGroup), value = encode_kv_q4(v + g * kKvGroup);
    for (std::int64_t c = 0; c < kBytes; ++c) {
      k_block[(g * kBytes + c) * kernels::kKvBlock + lane] = two(key, c);
      v_block[(lane * groups + g) * kBytes + c] = two(value, c);
    }
    k_scales[g * kernels::kKvBlock + lane] = key.d;
    v_scales[lane * groups + g] = value.d;
  }
}

/// Fields of two bits, then signs where there are some, then scales: of a token's key into column `lane`, `step` being
/// kKvBlock, or of a value, which has its bytes side by side (a step of 1).
void store_few(DType dtype, const float* x, std::int64_t head_dim, std::int64_t lane, bool key, std::byte* block) {
  const std::int64_t group = kv_few_group(head_dim), groups = head_dim / group, quarter = group / 4, eighth = group / 8;
  const bool signs = dtype == DType::q3_k;
  auto* const fields = reinterpret_cast<std::uint8_t*>(block);
  std::uint8_t* const sign_bits = fields + head_dim / 4 * kernels::kKvBlock;
  auto* const scales = reinterpret_cast<std::uint16_t*>(sign_bits + (signs ? head_dim / 8 * kernels::kKvBlock : 0));
  // Where number i of n that a token has stands.
  const auto place = [&](std::int64_t i, std::int64_t n) { return key ? i * kernels::kKvBlock + lane : lane * n + i; };
  static_assert(kernels::kMostQuantizedKvDim <= kMostKvFewGroup);
  std::uint8_t codes[kernels::kMostQuantizedKvDim];
  for (std::int64_t g = 0; g < groups; ++g) {
    scales[place(g, groups)] = encode_kv_few(dtype, x + g * group, group, codes);
    for (std::int64_t c = 0; c < quarter; ++c) {
      int byte = 0;
      for (std::int64_t i = 0; i < 4; ++i) byte |= (codes[c + i * quarter] & 3) << 2 * i;
      fields[place(g * quarter + c, groups * quarter)] = static_cast<std::uint8_t>(byte);
    }
    for (std::int64_t c = 0; signs && c < eighth; ++c) {
      int byte = 0;
      for (std::int64_t i = 0; i < 8; ++i) byte |= (codes[c + i * eighth] >> 2 & 1) << i;
      sign_bits[place(g * eighth + c, groups * eighth)] = static_cast<std::uint8_t>(byte);
    }
  }
}

void store_half_row(const kernels::Table& table, const kv::Group& kv, const float* k, const float* v, std::int64_t lane,
                    std::byte* k_block, std::byte* v_block) {
  table.f32_to_f16_row(v, kv.v_dim, reinterpret_cast<std::uint16_t*>(v_block) + lane * kv.v_dim);
  constexpr std::int64_t kStep = 64;
  std::uint16_t halves[kStep];
  for (std::int64_t d = 0; d < kv.k_dim; d += kStep) {
    const std::int64_t count = std::min(kStep, kv.k_dim - d);
    table.f32_to_f16_row(k + d, count, halves);
    scatter(halves, count, reinterpret_cast<std::uint16_t*>(k_block) + d * kernels::kKvBlock, lane);
  }
}

/// The destinations of a token's key and value: a block, and a block of the plain group (null: there is none).
struct KvBlocks {
  std::byte *k = nullptr, *v = nullptr, *plain_k = nullptr, *plain_v = nullptr;
};

void store_quantized_row(const kernels::Table& table, const kv::Group& kv, const float* k, const float* v,
                         std::int64_t lane, const KvBlocks& blocks) {
  alignas(64) float turned[2][kernels::kMostQuantizedKvDim];
  if (kv.rotated) {
    std::copy(k, k + kv.k_dim, turned[0]);
    std::copy(v, v + kv.v_dim, turned[1]);
    for (float* const part : turned) table.rotate(part, kv.v_dim, kv.rotation());
    k = turned[0];
    v = turned[1];
  }
  if (blocks.plain_k != nullptr) store_half_row(table, kv, k, v, lane, blocks.plain_k, blocks.plain_v);
  if (!kv_has_few_bits(kv.dtype))
    return (kv.dtype == DType::q4_0 ? store_q4_row : store_q8_row)(k, v, kv.k_dim, lane, blocks.k, blocks.v);
  store_few(kv.dtype, k, kv.k_dim, lane, true, blocks.k);
  store_few(kv.dtype, v, kv.v_dim, lane, false, blocks.v);
}

void store_row(const kernels::Table& table, const kv::Group& kv, const float* k, const float* v, std::int64_t lane,
               const KvBlocks& blocks) {
  if (kv.dtype == DType::f16) return store_half_row(table, kv, k, v, lane, blocks.k, blocks.v);
  if (kv.dtype != DType::f32) return store_quantized_row(table, kv, k, v, lane, blocks);
  scatter(k, kv.k_dim, reinterpret_cast<float*>(blocks.k), lane);
  std::memcpy(blocks.v + lane * kv.v_dim * 4, v, static_cast<std::size_t>(kv.v_dim) * 4);
}

}  // namespace

void store_latent_channels(const kernels::Table& table, const kv::Group& kv, const float* x, ChannelRange channels,
                           std::int64_t lane, std::byte* block) {
  const std::int64_t at = lane * kv.v_dim + channels.first, count = channels.count;
  if (kv.dtype == DType::f32) {
    std::memcpy(block + at * 4, x, static_cast<std::size_t>(count) * 4);
    return;
  }
  if (kv.dtype == DType::f16) {
    table.f32_to_f16_row(x, count, reinterpret_cast<std::uint16_t*>(block) + at);
    return;
  }
  constexpr std::int64_t kGroup = sizeof(BlockQ8_0::qs);
  auto* scales = reinterpret_cast<std::uint16_t*>(block + kv.v_dim * kv.rows());
  for (std::int64_t d = 0; d < count; d += kGroup) {
    BlockQ8_0 group;
    encode_row(DType::q8_0, x + d, kGroup, reinterpret_cast<std::byte*>(&group));
    std::memcpy(block + at + d, group.qs, kGroup);
    scales[(at + d) / kGroup] = group.d;
  }
}

void CpuExecutor::store_latent(std::int64_t layer, Act c, Act rotated) {
  if (!ready() || rows_ == 0) return;
  const kv::Group& kv = batch_->sequences[static_cast<std::size_t>(batch_->rows[0].sequence)]->layout().group_of(layer);
  const std::int64_t before = cols_of(c), behind = rotated.buffer < 0 ? 0 : cols_of(rotated);
  for_rows(rows_, kv.v_dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
      const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(row.sequence)];
      const std::int64_t lane = row.position % kv::kBlockTokens;
      std::byte* const block = sequence.v(row.position / kv::kBlockTokens, layer, 0);
      store_latent_channels(table_, kv, data(c) + r * before, {0, before}, lane, block);
      if (behind > 0) store_latent_channels(table_, kv, data(rotated) + r * behind, {before, behind}, lane, block);
    }
  });
}

void CpuExecutor::store_kv(std::int64_t layer, Act k, Act v) {
  if (!ready() || rows_ == 0) return;
  const kv::Layout& layout = batch_->sequences[static_cast<std::size_t>(batch_->rows[0].sequence)]->layout();
  const kv::Group& kv = layout.group_of(layer);
  const bool has_plain = layout.plain_group(layer) != kv::Place::kNowhere;
  const std::int64_t k_cols = kv.kv_heads * kv.k_dim, v_cols = kv.kv_heads * kv.v_dim;
  if (k_cols != cols_of(k) || v_cols != cols_of(v)) {
    fail(error(Code::internal, "keys of {} floats for a KV cache of {}", cols_of(k), k_cols));
    return;
  }
  const float *keys = data(k), *values = data(v);
  // Divided by head, so that no two threads write to one cache line of a block.
  const auto store_head = [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t h = first; h < last; ++h) {
      for (std::int64_t r = 0; r < rows_; ++r) {
        const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
        const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(row.sequence)];
        const std::int64_t block = row.position / kv::kBlockTokens;
        KvBlocks blocks{sequence.k(block, layer, h), sequence.v(block, layer, h)};
        if (has_plain) {
          blocks.plain_k = sequence.plain(block, layer, kv::Part::k, h);
          blocks.plain_v = sequence.plain(block, layer, kv::Part::v, h);
        }
        store_row(table_, kv, keys + r * k_cols + h * kv.k_dim, values + r * v_cols + h * kv.v_dim,
                  row.position % kv::kBlockTokens, blocks);
      }
    }
  };
  if (rows_ * k_cols <= kFewFloats) {
    store_head(0, kv.kv_heads, 0);
  } else {
    pool_.parallel_for(kv.kv_heads, 1, store_head);
  }
}

// --- Attention ---

/// Divides the batch's rows into tiles of at most tile_rows rows of one sequence (by_blocks: of one block; segments: of
/// one segment), and returns their number. Rows that see only selected keys (most_keys > 0: those with more keys before
/// them) are in no tile.
std::int64_t CpuExecutor::make_attention_tiles(std::int64_t tile_rows, bool by_blocks, bool segments,
                                               std::int64_t most_keys) {
  auto* tiles = at<AttentionTile>(layout_.attention_tiles);
  std::int64_t count = 0;
  std::int32_t segment = 0;
  for (std::int64_t r = 0; r < rows_; ++r) {
    const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
    const std::int32_t sequence = row.sequence;
    const bool begins = segments && (r == 0 || batch_->pictures[static_cast<std::size_t>(r - 1)].ahead == 0);
    if (begins) segment = batch_->pictures[static_cast<std::size_t>(r)].ahead + 1;
    const bool parts = begins || (by_blocks && row.position % kv::kBlockTokens == 0);
    if (most_keys > 0 && row.position >= most_keys) continue;
    const bool joins = count > 0 && !parts && tiles[count - 1].sequence == sequence &&
                       tiles[count - 1].first_row + tiles[count - 1].rows == r && tiles[count - 1].rows < tile_rows;
    if (!joins) tiles[count++] = {static_cast<std::int32_t>(r), 0, sequence, segment};
    ++tiles[count - 1].rows;
  }
  return count;
}

CpuExecutor::AttentionPair CpuExecutor::attention_pair(const AttentionCall& call, std::int64_t index,
                                                       std::int64_t slot) const {
  AttentionPair pair;
  pair.tile = at<AttentionTile>(layout_.attention_tiles)[index / call.attention.kv_heads];
  pair.head = index % call.attention.kv_heads;
  const auto* positions =
      (call.ends != nullptr ? call.ends : at<std::int32_t>(layout_.positions)) + pair.tile.first_row;
  const auto* ends = call.newest != nullptr ? call.newest + pair.tile.first_row : positions;
  const auto* const oldest = std::min_element(positions, positions + pair.tile.rows);
  const auto* const newest = std::max_element(ends, ends + pair.tile.rows);
  const std::int64_t window = pair.tile.segment > 0 ? pair.tile.segment : call.attention.window;
  const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, *oldest - window + 1) : 0;
  pair.first_chunk = first / kernels::kAttentionChunk;
  pair.chunks = *newest / kernels::kAttentionChunk - pair.first_chunk + 1;
  pair.first_block = first / kernels::kKvBlock;
  pair.last_block = *newest / kernels::kKvBlock;
  pair.queries = pair.tile.rows * call.group;
  pair.acc = at<float>(layout_.partials) + slot * call.slot_floats;
  pair.max = pair.acc + pair.chunks * pair.queries * call.attention.v_dim();
  pair.sum = pair.max + pair.chunks * pair.queries;
  return pair;
}

/// Of a chunk of the pair's keys, all but which keys these are and what of them its rows see.
kernels::AttentionArgs CpuExecutor::chunk_args(const AttentionCall& call, const AttentionPair& pair,
                                               std::int64_t chunk) const {
  const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(pair.tile.sequence)];
  const kv::Group& kv = sequence.layout().group_of(call.layer);
  kernels::AttentionArgs args;
  args.head_dim = call.attention.head_dim;
  args.group = call.group;
  args.q = call.q + pair.tile.first_row * call.q_stride + pair.head * call.group * args.head_dim;
  args.q_row_stride = call.q_stride;
  args.q_head_stride = args.head_dim;
  args.rows = pair.tile.rows;
  args.scale = call.attention.scale;
  args.cap = call.attention.cap;
  args.kv_dtype = kv.dtype;
  args.rotation = kv.rotation();
  args.chunk = pair.first_chunk + chunk;
  args.v_dim = call.attention.v_dim();
  args.acc = pair.acc + chunk * pair.queries * args.v_dim;
  args.max = pair.max + chunk * pair.queries;
  args.sum = pair.sum + chunk * pair.queries;
  return args;
}

void CpuExecutor::attend_chunk(const AttentionCall& call, const AttentionPair& pair, std::int64_t chunk,
                               int thread) const {
  const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(pair.tile.sequence)];
  const bool latents = call.attention.latent_values > 0;
  const std::byte* k_blocks[kChunkBlocks] = {};
  const std::byte* v_blocks[kChunkBlocks] = {};
  const std::int64_t first = (pair.first_chunk + chunk) * kChunkBlocks;
  const bool has_plain = sequence.layout().plain_group(call.layer) != kv::Place::kNowhere;
  kernels::AttentionArgs args = chunk_args(call, pair, chunk);
  for (std::int64_t b = std::max(first, pair.first_block); b <= std::min(first + kChunkBlocks - 1, pair.last_block);
       ++b) {
    if (has_plain && (b == 0 || b == pair.last_block)) {
      k_blocks[b - first] = sequence.plain(b, call.layer, kv::Part::k, pair.head);
      v_blocks[b - first] = sequence.plain(b, call.layer, kv::Part::v, pair.head);
      args.plain_blocks |= std::uint32_t{1} << (b - first);
      continue;
    }
    if (!latents) k_blocks[b - first] = sequence.k(b, call.layer, pair.head);
    v_blocks[b - first] = sequence.v(b, call.layer, pair.head);
  }
  args.positions = (call.ends != nullptr ? call.ends : at<std::int32_t>(layout_.positions)) + pair.tile.first_row;
  if (call.newest != nullptr) args.newest = call.newest + pair.tile.first_row;
  args.window = pair.tile.segment > 0 ? pair.tile.segment : call.attention.window;
  if (!call.attention.slopes.empty()) args.slopes = call.attention.slopes.data() + pair.head * call.group;
  args.k_blocks = latents ? nullptr : k_blocks;
  args.v_blocks = v_blocks;
  args.latents = reinterpret_cast<float*>(thread_memory(thread) + layout_.thread_latents);
  table_.attention_chunk(args);
}

void CpuExecutor::merge_chunks(const AttentionCall& call, const AttentionPair& pair) const {
  const std::int64_t v_dim = call.attention.v_dim();
  const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(pair.tile.sequence)];
  const std::int64_t rotation = sequence.layout().group_of(call.layer).rotation();
  for (std::int64_t i = 0; i < pair.queries; ++i) {
    const std::int64_t row = pair.tile.first_row + i / call.group, head = pair.head * call.group + i % call.group;
    float* const out = call.out + row * call.out_stride + head * v_dim;
    table_.attention_merge(pair.acc + i * v_dim, pair.queries * v_dim, pair.max + i, pair.sum + i, pair.queries,
                           pair.chunks, v_dim, call.sinks == nullptr ? kNoSink : call.sinks[head], out);
    if (rotation > 0) table_.rotate(out, v_dim, rotation);
  }
}

/// The last key that each row sees if attention is not causal: the last of its text, or of a window to both sides;
/// nullptr if the pass fails.
const std::int32_t* CpuExecutor::find_newest(std::int64_t window) {
  const auto* const positions = at<std::int32_t>(layout_.positions);
  auto* const newest = at<std::int32_t>(layout_.newest);
  for (std::int64_t r = rows_ - 1; r >= 0; --r) {  // a sequence's rows are together, in ascending position
    const std::int32_t sequence = batch_->rows[static_cast<std::size_t>(r)].sequence;
    const bool last = r == rows_ - 1 || batch_->rows[static_cast<std::size_t>(r + 1)].sequence != sequence;
    newest[r] = last ? positions[r] : newest[r + 1];
    if (batch_->sequences[static_cast<std::size_t>(sequence)]->length() == 0) continue;
    fail(error(Code::internal, "part of a text in a pass, whose tokens see those behind them"));
    return nullptr;
  }
  for (std::int64_t r = 0; window > 0 && r < rows_; ++r)
    newest[r] = static_cast<std::int32_t>(std::min<std::int64_t>(newest[r], positions[r] + window - 1));
  return newest;
}

/// The same if rows of pictures see later rows of the pass; nullptr also if no row does.
const std::int32_t* CpuExecutor::find_seen_ahead() {
  const std::vector<kv::PictureRow>& pictures = batch_->pictures;
  if (std::none_of(pictures.begin(), pictures.end(), [](const kv::PictureRow& row) { return row.ahead > 0; }))
    return nullptr;
  const auto* const positions = at<std::int32_t>(layout_.positions);
  auto* const newest = at<std::int32_t>(layout_.newest);
  for (std::int64_t r = 0; r < rows_; ++r) {
    const std::int64_t ahead = pictures[static_cast<std::size_t>(r)].ahead;
    newest[r] = static_cast<std::int32_t>(positions[r] + ahead);
    const bool there = ahead == 0 || (r + ahead < rows_ && batch_->rows[static_cast<std::size_t>(r + ahead)].sequence ==
                                                               batch_->rows[static_cast<std::size_t>(r)].sequence);
    if (there) continue;
    fail(error(Code::internal, "part of a picture in a pass, whose rows see those behind them"));
    return nullptr;
  }
  return newest;
}

/// The last row of each row's segment; nullptr if the pass fails.
const std::int32_t* CpuExecutor::find_segments() {
  const auto* const positions = at<std::int32_t>(layout_.positions);
  auto* const ends = at<std::int32_t>(layout_.newest);
  std::int64_t end = -1;  // of the segment before, then of this row's
  for (std::int64_t r = 0; r < rows_; ++r) {
    const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
    const bool alone = batch_->sequences.size() == 1 && batch_->sequences[0]->length() == 0 && row.position == r;
    const std::int64_t own = batch_->pictures.empty() ? -1 : r + batch_->pictures[static_cast<std::size_t>(r)].ahead;
    if (!alone || own < r || own >= rows_ || (end >= r && own != end)) {
      fail(error(Code::internal, "row {} of a pass is of no segment", r));
      return nullptr;
    }
    end = own;
    ends[r] = positions[own];
  }
  return ends;
}

/// The last position of each row's chunk.
const std::int32_t* CpuExecutor::find_chunk_ends(std::int64_t chunk) {
  const auto* const positions = at<std::int32_t>(layout_.positions);
  auto* const ends = at<std::int32_t>(layout_.newest);
  for (std::int64_t r = 0; r < rows_; ++r) ends[r] = static_cast<std::int32_t>((positions[r] / chunk + 1) * chunk - 1);
  return ends;
}

void CpuExecutor::attention(Act out, Act q, std::int64_t layer, const Attention& attention, Act selected) {
  if (!ready() || rows_ == 0) return;
  AttentionCall call{attention, layer,       attention.heads / attention.kv_heads, 0, data(q), cols_of(q),
                     data(out), cols_of(out)};
  if (!attention.sinks.none()) {
    call.sinks = vector_of(attention.sinks, attention.heads, 0);
    if (call.sinks == nullptr) return;
  }
  if (attention.segments) {
    call.ends = find_segments();
    if (call.ends == nullptr) return;
  } else if (attention.chunks) {
    call.ends = find_chunk_ends(attention.window);
    call.newest = at<std::int32_t>(layout_.positions);
  } else if (!attention.causal) {
    call.newest = find_newest(attention.window);
    if (call.newest == nullptr) return;
  } else if (attention.whole_pictures) {
    call.newest = find_seen_ahead();
    if (failed()) return;
  }
  if (attention.rows >= 0) return attend_to_rows(call, selected);
  if (attention.selected > 0) return attend_to_selected(call, selected);
  attend_to_all(call);
}

void CpuExecutor::attend_to_all(AttentionCall& call) {
  const Attention& attention = call.attention;
  const std::int64_t slots = 2 * pool_.threads();
  call.slot_floats = layout_.partial_floats / slots;
  const kv::Layout& kept = batch_->sequences[static_cast<std::size_t>(batch_->rows[0].sequence)]->layout();
  const bool by_blocks = kept.plain_group(call.layer) != kv::Place::kNowhere;
  const std::int64_t tile_rows = attention.causal
                                     ? attention_tile_rows(call.group)
                                     : whole_tile_rows(call.group, attention.kv_heads, rows_, pool_.threads());
  const std::int64_t pairs =
      attention.kv_heads * make_attention_tiles(tile_rows, by_blocks, attention.segments, attention.most_selected());
  if (pairs == 0) return;
  for (std::int64_t i = 0; i < pairs; i += attention.kv_heads) {
    const AttentionPair pair = attention_pair(call, i, 0);
    if (pair.chunks * pair.queries * (attention.v_dim() + 2) <= call.slot_floats) continue;
    fail(error(Code::internal, "attention over {} chunks was not prepared", pair.chunks));
    return;
  }
  run_pairs(
      call, pairs, [&](std::int64_t i, std::int64_t slot) { return attention_pair(call, i, slot); },
      [&](const AttentionPair& pair, std::int64_t chunk, int thread) { attend_chunk(call, pair, chunk, thread); });
}

}  // namespace millrace::exec

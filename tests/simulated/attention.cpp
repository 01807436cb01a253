// Keys, values, latents, and attention over them. Blocks lie as kernels/gpu says. Over f16 and q8_0 the processor's
// kernels attend; over other types keys and values are decoded, and sums run as attention() does over f32, which has
// the GPU's bits so. Rows do not depend on who is beside them either way.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels.h"
#include "kernels/gpu/latent.h"
#include "tensor/blocks.h"
#include "tensor/kv_codec.h"

namespace millrace::kernels::gpu {

namespace {

using simulated::at;
using simulated::cpu;

constexpr std::int64_t kSlots = 64;  // tokens of a block

/// A head's keys or values in a block: element (channel, slot) of each array by one rule.
class Part {
 public:
  Part(DType dtype, std::int64_t head_dim, bool is_key, std::byte* base)
      : dtype_(dtype), dim_(head_dim), is_key_(is_key), base_(base) {}

  void store(std::int64_t slot, const float* x) const {
    if (dtype_ == DType::f32 || dtype_ == DType::f16) {
      for (std::int64_t c = 0; c < dim_; ++c) {
        if (dtype_ == DType::f32)
          at<float>(0, dim_, c, slot) = x[c];
        else
          at<std::uint16_t>(0, dim_, c, slot) = f32_to_f16(x[c]);
      }
    } else if (dtype_ == DType::q8_0) {
      for (std::int64_t g = 0; g < dim_ / 32; ++g) {
        BlockQ8_0 block;
        encode_row(DType::q8_0, x + 32 * g, 32, reinterpret_cast<std::byte*>(&block));
        for (std::int64_t i = 0; i < 32; ++i) at<std::int8_t>(0, dim_, 32 * g + i, slot) = block.qs[i];
        at<std::uint16_t>(kSlots * dim_, dim_ / 32, g, slot) = block.d;
      }
    } else if (dtype_ == DType::q4_0) {
      for (std::int64_t g = 0; g < dim_ / 32; ++g) {
        const KvGroup group = encode_kv_q4(x + 32 * g);
        for (std::int64_t i = 0; i < 16; ++i)
          at<std::uint8_t>(0, dim_ / 2, 16 * g + i, slot) =
              static_cast<std::uint8_t>((group.q[i] & 15) | (group.q[i + 16] & 15) << 4);
        at<std::uint16_t>(kSlots * dim_ / 2, dim_ / 32, g, slot) = group.d;
      }
    } else {
      store_few(slot, x);
    }
  }

  void load(std::int64_t slot, float* x) const {
    if (dtype_ == DType::f32 || dtype_ == DType::f16) {
      for (std::int64_t c = 0; c < dim_; ++c)
        x[c] = dtype_ == DType::f32 ? at<float>(0, dim_, c, slot) : f16_to_f32(at<std::uint16_t>(0, dim_, c, slot));
    } else if (dtype_ == DType::q8_0) {
      for (std::int64_t c = 0; c < dim_; ++c)
        x[c] = static_cast<float>(at<std::int8_t>(0, dim_, c, slot)) *
               f16_to_f32(at<std::uint16_t>(kSlots * dim_, dim_ / 32, c / 32, slot));
    } else if (dtype_ == DType::q4_0) {
      for (std::int64_t c = 0; c < dim_; ++c) {
        const std::uint8_t byte = at<std::uint8_t>(0, dim_ / 2, c / 32 * 16 + c % 16, slot);
        const int nibble = c % 32 < 16 ? byte & 15 : byte >> 4;
        x[c] = static_cast<float>(nibble < 8 ? nibble : nibble - 16) *
               f16_to_f32(at<std::uint16_t>(kSlots * dim_ / 2, dim_ / 32, c / 32, slot));
      }
    } else {
      load_few(slot, x);
    }
  }

 private:
  /// Element `channel` of `slot` of an array with `channels` of them, `offset` bytes on.
  template <typename T>
  T& at(std::int64_t offset, std::int64_t channels, std::int64_t channel, std::int64_t slot) const {
    return reinterpret_cast<T*>(base_ + offset)[is_key_ ? channel * kSlots + slot : slot * channels + channel];
  }
  bool three() const { return dtype_ == DType::q3_k; }
  std::int64_t scales_at() const { return kSlots * (dim_ / 4 + (three() ? dim_ / 8 : 0)); }

  void store_few(std::int64_t slot, const float* x) const {
    const std::int64_t group = kv_few_group(dim_);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(dim_));
    for (std::int64_t g = 0; g < dim_ / group; ++g)
      at<std::uint16_t>(scales_at(), dim_ / group, g, slot) =
          encode_kv_few(dtype_, x + g * group, group, codes.data() + g * group);
    for (std::int64_t b = 0; b < dim_ / 4; ++b) {
      unsigned byte = 0;
      for (std::int64_t i = 0; i < 4; ++i) byte |= (codes[static_cast<std::size_t>(4 * b + i)] & 3u) << (2 * i);
      at<std::uint8_t>(0, dim_ / 4, b, slot) = static_cast<std::uint8_t>(byte);
    }
    for (std::int64_t b = 0; three() && b < dim_ / 8; ++b) {
      unsigned byte = 0;
      for (std::int64_t i = 0; i < 8; ++i) byte |= (codes[static_cast<std::size_t>(8 * b + i)] >> 2 & 1u) << i;
      at<std::uint8_t>(kSlots * dim_ / 4, dim_ / 8, b, slot) = static_cast<std::uint8_t>(byte);
    }
  }
  void load_few(std::int64_t slot, float* x) const {
    const std::int64_t group = kv_few_group(dim_);
    for (std::int64_t c = 0; c < dim_; ++c) {
      const int field = at<std::uint8_t>(0, dim_ / 4, c / 4, slot) >> (2 * (c % 4)) & 3;
      const std::uint32_t levels = three() ? kKvLevels3 : kKvLevels2;
      int level = static_cast<std::int8_t>(levels >> (8 * field) & 255u);
      if (three() && (at<std::uint8_t>(kSlots * dim_ / 4, dim_ / 8, c / 8, slot) >> (c % 8) & 1) != 0) level = -level;
      x[c] = static_cast<float>(level) * f16_to_f32(at<std::uint16_t>(scales_at(), dim_ / group, c / group, slot));
    }
  }

  const DType dtype_;
  const std::int64_t dim_;
  const bool is_key_;
  std::byte* const base_;
};

Part part_of(const KvView& kv, bool plain, int sequence, std::int64_t position, int head, bool is_key) {
  const KvView::Blocks& blocks = plain ? kv.plain : kv.blocks;
  const std::byte* const block = blocks.table[std::int64_t{sequence} * kv.max_blocks + position / kSlots];
  return {plain ? DType::q8_0 : kv.dtype, kv.head_dim, is_key,
          const_cast<std::byte*>(block) + (is_key ? blocks.k_offset : blocks.v_offset) + head * blocks.head_bytes};
}

void store_head(const KvView& kv, int sequence, std::int64_t position, int head, bool is_key, float* x) {
  if (kv.rotation > 0) cpu().rotate(x, kv.head_dim, kv.rotation);
  part_of(kv, false, sequence, position, head, is_key).store(position % kSlots, x);
  if (kv_has_few_bits(kv.dtype)) part_of(kv, true, sequence, position, head, is_key).store(position % kSlots, x);
}

void prepare(const RopeStoreCall& call) {
  const std::int64_t dim = call.kv.head_dim;
  const std::vector<float> ones(static_cast<std::size_t>(dim), 1.0f);
  std::vector<float> head(static_cast<std::size_t>(dim));
  for (std::int64_t r = 0; r < call.rows.rows; ++r) {
    const float* const angles = call.cos_sin + r * call.rotary;
    const auto turned = [&](float* x, const std::byte* const* norm) {
      if (norm != nullptr) cpu().rms_norm(x, at(norm), 1, dim, call.eps, x);
      if (call.rotary > 0) cpu().rope(x, angles, call.rotary, call.neox);
    };
    for (std::int64_t h = 0; h < call.heads; ++h) {
      float* const q = call.q + (r * call.heads + h) * dim;
      turned(q, call.q_norm);
      if (call.kv.rotation > 0) cpu().rotate(q, dim, call.kv.rotation);
    }
    const int sequence = call.rows.sequence[r];
    const std::int64_t position = call.rows.position[r];
    for (int h = 0; call.k != nullptr && h < call.kv.kv_heads; ++h) {
      std::copy_n(call.k + (r * call.kv.kv_heads + h) * dim, dim, head.data());
      turned(head.data(), call.k_norm);
      store_head(call.kv, sequence, position, h, true, head.data());
      std::copy_n(call.v + (r * call.kv.kv_heads + h) * dim, dim, head.data());
      if (call.normalize_v) cpu().rms_norm(head.data(), ones.data(), 1, dim, call.eps, head.data());
      store_head(call.kv, sequence, position, h, false, head.data());
    }
  }
}

/// (M, L, A) of ops.h.
struct Merged {
  float most = -INFINITY, total = 0;
  std::vector<float> values;

  void merge(float m, float l, const std::vector<float>& acc) {
    const float now = std::fmax(most, m);
    const float before = most == -INFINITY ? 0 : exp_f32(most - now), joins = exp_f32(m - now);
    total = std::fma(total, before, l * joins);
    for (std::size_t d = 0; d < values.size(); ++d) values[d] = std::fma(values[d], before, acc[d] * joins);
    most = now;
  }
};

/// A chunk's keys, decoded, channel by channel, and its values, key by key.
struct Chunk {
  Chunk(std::int64_t key_dim, std::int64_t value_stride)
      : dim(key_dim),
        stride(value_stride),
        keys(static_cast<std::size_t>(kAttentionChunk * key_dim)),
        values(static_cast<std::size_t>(kAttentionChunk * value_stride)) {}

  void put_key(std::int64_t j, const float* key) {
    for (std::int64_t c = 0; c < dim; ++c) keys[static_cast<std::size_t>(c * kAttentionChunk + j)] = key[c];
  }
  float* value(std::int64_t j) { return values.data() + j * stride; }

  const std::int64_t dim, stride;
  std::int64_t count = 0;  // keys that are seen,
  std::int64_t lane = 0;   // from this one on
  std::vector<float> keys, values;
};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MR_WITH_FMA __attribute__((target_clones("default", "arch=haswell")))
#else
#define MR_WITH_FMA
#endif

/// scores[j] = q . key j, by ascending channel.
MR_WITH_FMA void score(const float* q, const float* keys, std::int64_t dim, std::int64_t count, float* scores) {
  std::fill_n(scores, count, 0.0f);
  for (std::int64_t c = 0; c < dim; ++c)
    for (std::int64_t j = 0; j < count; ++j) scores[j] = __builtin_fmaf(q[c], keys[c * kAttentionChunk + j], scores[j]);
}
/// acc = the sum of weights times values, by ascending key.
MR_WITH_FMA void weigh(const float* weights, const float* values, std::int64_t stride, std::int64_t count,
                       std::int64_t dim, float* acc) {
  for (std::int64_t j = 0; j < count; ++j)
    for (std::int64_t d = 0; d < dim; ++d) acc[d] = __builtin_fmaf(weights[j], values[j * stride + d], acc[d]);
}

/// What scaled scores go through. ahead: the query's position less that of the chunk's first key that it sees.
struct Bend {
  float cap = 0, slope = 0;
  std::int64_t ahead = 0;
};

void attend_chunk(const float* q, float scale, const Chunk& chunk, const Bend& bend, Merged& into) {
  float e[kAttentionChunk], lanes[32] = {};
  score(q, chunk.keys.data() + chunk.lane, chunk.dim, chunk.count, e);
  float most = -INFINITY;
  for (std::int64_t j = 0; j < chunk.count; ++j) e[j] *= scale;
  if (bend.cap > 0) cpu().softcap(e, bend.cap, chunk.count);
  for (std::int64_t j = 0; j < chunk.count; ++j) {
    if (bend.slope != 0) e[j] = std::fma(bend.slope, -static_cast<float>(std::abs(bend.ahead - j)), e[j]);
    most = std::fmax(most, e[j]);
  }
  for (std::int64_t j = 0; j < chunk.count; ++j) {
    e[j] = exp_f32(e[j] - most);
    lanes[(chunk.lane + j) % 32] += e[j];
  }
  for (int step = 16; step > 0; step /= 2)
    for (int l = 0; l < step; ++l) lanes[l] += lanes[l + step];
  std::vector<float> acc(into.values.size());
  weigh(e, chunk.values.data() + chunk.lane * chunk.stride, chunk.stride, chunk.count,
        static_cast<std::int64_t>(acc.size()), acc.data());
  into.merge(most, lanes[0], acc);
}

/// Row r by the processor's kernels, `out` being [heads, head_dim].
void attend_fast(const AttentionCall& call, std::int64_t r, float* out) {
  const KvView& kv = call.kv;
  const std::int64_t dim = kv.head_dim, group = call.heads / kv.kv_heads, position = call.rows.position[r];
  const std::int64_t chunks = position / kernels::kAttentionChunk + 1, blocks = kernels::kAttentionChunk / kSlots;
  const auto sums = static_cast<std::size_t>(chunks * group);
  std::vector<float> acc(sums * static_cast<std::size_t>(dim)), most(sums), total(sums);
  std::vector<const std::byte*> keys(static_cast<std::size_t>(blocks)), values(keys.size());
  for (int kv_head = 0; kv_head < kv.kv_heads; ++kv_head) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::int64_t b = 0; b < blocks && chunk * blocks + b <= position / kSlots; ++b) {
        const std::byte* const block =
            kv.blocks.table[std::int64_t{call.rows.sequence[r]} * kv.max_blocks + chunk * blocks + b] +
            kv_head * kv.blocks.head_bytes;
        keys[static_cast<std::size_t>(b)] = block + kv.blocks.k_offset;
        values[static_cast<std::size_t>(b)] = block + kv.blocks.v_offset;
      }
      AttentionArgs args;
      args.q = call.q + (r * call.heads + kv_head * group) * dim;
      args.q_row_stride = call.heads * dim;
      args.q_head_stride = args.head_dim = args.v_dim = dim;
      args.rows = 1;
      args.group = group;
      args.positions = call.rows.position + r;
      args.window = call.chunks ? position % call.window + 1 : call.window;
      args.scale = call.scale;
      args.cap = call.cap;
      args.slopes = call.slopes == nullptr ? nullptr : call.slopes + kv_head * group;
      args.kv_dtype = kv.dtype;
      args.chunk = chunk;
      args.k_blocks = keys.data();
      args.v_blocks = values.data();
      args.acc = acc.data() + chunk * group * dim;
      args.max = most.data() + chunk * group;
      args.sum = total.data() + chunk * group;
      cpu().attention_chunk(args);
    }
    for (std::int64_t g = 0; g < group; ++g)
      cpu().attention_merge(acc.data() + g * dim, group * dim, most.data() + g, total.data() + g, group, chunks, dim,
                            call.sinks == nullptr ? -INFINITY : at(call.sinks)[kv_head * group + g],
                            out + (kv_head * group + g) * dim);
  }
}

/// Keys and values of one chunk of a sequence and one head, decoded when they are first asked for: rows of a pass share
/// them.
class Decoded {
 public:
  Decoded(const KvView& kv, std::int64_t chunk, int kv_head)
      : kv_(kv), first_(chunk * kAttentionChunk), head_(kv_head), chunk_(kv.head_dim, kv.head_dim) {}

  /// What the row at `position` sees from position `from` on; the chunk begins there.
  const Chunk& seen(int sequence, std::int64_t position, std::int64_t from) {
    const std::int64_t end = std::min(first_ + kAttentionChunk, position + 1);
    for (std::int64_t b = 0; b < kAttentionChunk / kSlots; ++b) {
      const std::int64_t begin = first_ + b * kSlots;
      const bool plain = kv_has_few_bits(kv_.dtype) && (begin == 0 || begin / kSlots == position / kSlots);
      Block& block = blocks_[static_cast<std::size_t>(b)];
      if (block.sequence != sequence || block.plain != plain) block = {sequence, plain, 0};
      for (; begin + block.count < std::min(end, begin + kSlots); ++block.count)
        decode(sequence, plain, begin + block.count);
    }
    chunk_.lane = from - first_;
    chunk_.count = end - from;
    return chunk_;
  }

 private:
  struct Block {
    int sequence = -1;
    bool plain = false;
    std::int64_t count = 0;  // keys that are decoded
  };
  void decode(int sequence, bool plain, std::int64_t p) {
    const KvView::Blocks& blocks = plain ? kv_.plain : kv_.blocks;
    if (blocks.table[std::int64_t{sequence} * kv_.max_blocks + p / kSlots] == nullptr) return;  // before a window
    std::vector<float> key(static_cast<std::size_t>(kv_.head_dim));
    part_of(kv_, plain, sequence, p, head_, true).load(p % kSlots, key.data());
    chunk_.put_key(p - first_, key.data());
    part_of(kv_, plain, sequence, p, head_, false).load(p % kSlots, chunk_.value(p - first_));
  }

  const KvView& kv_;
  const std::int64_t first_;
  const int head_;
  Chunk chunk_;
  std::array<Block, kAttentionChunk / kSlots> blocks_;
};

/// The positions that row r sees.
SeenKeys seen_by(const AttentionCall& call, std::int64_t r) {
  if (call.seen != nullptr) return call.seen[r];
  const std::int32_t position = call.rows.position[r];
  if (call.chunks) return {position / call.window * call.window, position};
  return {call.window > 0 ? std::max(position - call.window + 1, 0) : 0, position};
}

/// All rows as attention() over f32, `out` being [rows, heads, head_dim].
void attend_plainly(const AttentionCall& call, float* out) {
  const KvView& kv = call.kv;
  const std::int64_t dim = kv.head_dim, group = call.heads / kv.kv_heads;
  std::int64_t last = 0;
  for (std::int64_t r = 0; r < call.rows.rows; ++r) last = std::max<std::int64_t>(last, seen_by(call, r).last);
  for (int kv_head = 0; kv_head < kv.kv_heads; ++kv_head) {
    std::vector<Merged> merged(static_cast<std::size_t>(call.rows.rows * group));
    for (std::size_t i = 0; i < merged.size(); ++i) {
      merged[i].values.assign(static_cast<std::size_t>(dim), 0.0f);
      if (call.sinks == nullptr) continue;
      merged[i].most = at(call.sinks)[kv_head * group + static_cast<std::int64_t>(i) % group];
      merged[i].total = 1;
    }
    for (std::int64_t chunk = 0; chunk <= last / kAttentionChunk; ++chunk) {
      Decoded decoded(kv, chunk, kv_head);
      for (std::int64_t r = 0; r < call.rows.rows; ++r) {
        const SeenKeys keys = seen_by(call, r);
        const std::int64_t begin = chunk * kAttentionChunk, from = std::max<std::int64_t>(begin, keys.first);
        if (from > keys.last || from >= begin + kAttentionChunk) continue;
        const Chunk& seen = decoded.seen(call.rows.sequence[r], keys.last, from);
        for (std::int64_t g = 0; g < group; ++g) {
          const std::int64_t head = kv_head * group + g;
          const Bend bend{call.cap, call.slopes == nullptr ? 0 : call.slopes[head], call.rows.position[r] - from};
          attend_chunk(call.q + (r * call.heads + head) * dim, call.scale, seen, bend,
                       merged[static_cast<std::size_t>(r * group + g)]);
        }
      }
    }
    for (std::int64_t i = 0; i < call.rows.rows * group; ++i) {
      const Merged& one = merged[static_cast<std::size_t>(i)];
      float* const to = out + (i / group * call.heads + kv_head * group + i % group) * dim;
      for (std::int64_t d = 0; d < dim; ++d) to[d] = one.values[static_cast<std::size_t>(d)] / one.total;
    }
  }
}

void attend(const AttentionCall& call) {
  const KvView& kv = call.kv;
  const std::int64_t cols = std::int64_t{call.heads} * kv.head_dim, rows = call.rows.rows;
  std::vector<float> out(static_cast<std::size_t>(rows * cols));
  if ((kv.dtype == DType::f16 || kv.dtype == DType::q8_0) && call.seen == nullptr) {
    for (std::int64_t r = 0; r < rows; ++r) attend_fast(call, r, out.data() + r * cols);
  } else {
    attend_plainly(call, out.data());
  }
  for (std::int64_t i = 0; kv.rotation > 0 && i < rows * call.heads; ++i)
    cpu().rotate(out.data() + i * kv.head_dim, kv.head_dim, kv.rotation);
  simulated::give_out(out.data(), rows, cols, call.out, call.out_q8, nullptr);
}

void store(const LatentStoreCall& call) {
  const std::int64_t dim = call.kv.head_dim, rank = dim - call.rotary;
  std::vector<float> x(static_cast<std::size_t>(dim));
  for (std::int64_t r = 0; r < call.rows.rows; ++r) {
    const float* const angles = call.cos_sin + r * call.rotary;
    for (std::int64_t h = 0; h < call.heads; ++h)
      cpu().rope(call.q + (r * call.heads + h) * call.q_head + call.q_head - call.rotary, angles, call.rotary,
                 call.neox);
    std::copy_n(call.c + r * rank, rank, x.data());
    if (call.norm != nullptr) cpu().rms_norm(x.data(), at(call.norm), 1, rank, call.eps, x.data());
    std::copy_n(call.key + r * call.rotary, call.rotary, x.data() + rank);
    cpu().rope(x.data() + rank, angles, call.rotary, call.neox);
    const std::int64_t position = call.rows.position[r];
    part_of(call.kv, false, call.rows.sequence[r], position, 0, false).store(position % kSlots, x.data());
  }
}

void attend_latents(const LatentAttentionCall& call) {
  const std::int64_t dim = call.kv.head_dim;
  Chunk latents(dim, dim);
  for (std::int64_t r = 0; r < call.rows.rows; ++r) {
    const std::int32_t* const list = call.chosen == nullptr ? nullptr : call.chosen + r * call.top_k;
    const std::int64_t all = call.rows.position[r] + 1;
    const std::int64_t keys = list == nullptr ? all : std::min<std::int64_t>(all, call.top_k);
    std::vector<Merged> merged(static_cast<std::size_t>(call.heads));
    for (Merged& one : merged) one.values.assign(static_cast<std::size_t>(call.v_dim), 0.0f);
    for (std::int64_t chunk = 0; chunk < keys; chunk += kAttentionChunk) {
      const std::int64_t end = std::min(chunk + kAttentionChunk, keys);
      for (std::int64_t i = chunk; i < end; ++i) {
        const std::int64_t p = list == nullptr ? i : list[i];
        part_of(call.kv, false, call.rows.sequence[r], p, 0, false).load(p % kSlots, latents.value(i - chunk));
        latents.put_key(i - chunk, latents.value(i - chunk));
      }
      latents.count = end - chunk;
      for (std::int64_t h = 0; h < call.heads; ++h)
        attend_chunk(call.q + (r * call.heads + h) * dim, call.scale, latents, {}, merged[static_cast<std::size_t>(h)]);
    }
    for (std::int64_t h = 0; h < call.heads; ++h)
      for (std::int64_t d = 0; d < call.v_dim; ++d)
        call.out[(r * call.heads + h) * call.v_dim + d] =
            merged[static_cast<std::size_t>(h)].values[static_cast<std::size_t>(d)] /
            merged[static_cast<std::size_t>(h)].total;
  }
}

}  // namespace

Status rope_store(const RopeStoreCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, prepare);
}
Status rotate_heads(float* x, std::int32_t heads, std::int32_t head_dim, std::int32_t span, bool floats, Q8 out,
                    device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    const std::int64_t count = std::int64_t{heads} * head_dim;
    std::vector<float> y(x, x + count);
    for (std::int64_t h = 0; h < heads; ++h) cpu().rotate(y.data() + h * head_dim, head_dim, span);
    simulated::give_out(y.data(), heads, head_dim, floats ? x : nullptr, out, nullptr);
  });
}

std::int32_t attention_tile_rows(std::int32_t group) { return std::max(64 / group, 1); }
std::size_t attention_workspace_bytes(std::int32_t, std::int32_t, std::int32_t, std::int32_t) { return 256; }
Status attention(const AttentionCall& call, device::StreamRef stream) {
  const bool few = kv_has_few_bits(call.kv.dtype), rotated = call.kv.rotation > 0;
  const bool quantized = few || call.kv.dtype == DType::q8_0 || call.kv.dtype == DType::q4_0;
  if (call.chunks && (call.window <= 0 || call.seen != nullptr)) return simulated::refused();
  if ((few && call.kv.plain.table == nullptr) || (quantized ? call.kv.head_dim % 32 != 0 : rotated) ||
      (rotated && call.out == nullptr))
    return simulated::refused();
  return simulated::launch(stream, call, attend);
}

Status store_latent(const LatentStoreCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, store);
}
std::size_t latent_workspace_bytes(std::int32_t, std::int32_t, std::int32_t, std::int32_t) { return 256; }
Status latent_attention(const LatentAttentionCall& call, device::StreamRef stream) {
  if (call.kv.head_dim % 8 != 0 || call.v_dim % 4 != 0) return simulated::refused();
  return simulated::launch(stream, call, attend_latents);
}

}  // namespace millrace::kernels::gpu

// Flash-style attention of one KV head over one chunk of keys, written once over a vector type.
//
// The queries of a tile ([rows, group], flattened) go over the keys together, block by block, in groups of M. For each
// block of 64 keys a group does two small products with the same kernel, C[M, n] += A[M, k] B[k, n]: the scores (B =
// the K block, lanes are keys) and the weighted values (B = the V block, lanes are channels), with the online softmax
// between them, and each block is read or decoded once for all groups. A query's
// arithmetic does not depend on M or on its neighbours: each sum runs in ascending order in a lane of its own, and keys
// a query cannot see never enter its sums, not even multiplied by zero (they may hold anything).
// Source: Dao et al., FlashAttention (2022); Milakov and Gimelshein, Online normalizer calculation for softmax (2018).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

#include "kernels/cpu/fused.h"
#include "kernels/cpu/ops_body.h"
#include "kernels/kernels.h"
#include "tensor/half.h"
#include "tensor/kv_codec.h"

namespace millrace::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Vectors of B that a group of M queries works on at once: they, the queries' accumulators and one broadcast fit the
/// registers.
template <typename V, int M>
constexpr int vectors_together() {
  int count = 4;
  while (count > 1 && (M * count + count + 1 > V::kRegisters || count * V::kWidth > kKvBlock)) --count;
  return count;
}
/// The largest M: with three vectors of B, so that loads are fewer than fmas.
template <typename V>
constexpr int max_group() {
  return V::kRegisters >= 32 ? 8 : 4;
}

template <typename V, bool kHalf>
typename V::Float load_kv(const std::byte* base, std::int64_t index, int n) {
  if constexpr (kHalf) {
    const auto* p = reinterpret_cast<const std::uint16_t*>(base) + index;
    return n == V::kWidth ? V::load_half(p) : V::load_half_first(p, n);
  } else {
    return load_n<V>(reinterpret_cast<const float*>(base) + index, n);
  }
}

/// What a product does with what is in C: adds to it, or overwrites it with the sums times a scale.
enum class Into { sums, scores };

/// C[m][0 .. N * kWidth) += sum over k in [k_begin, k_end), ascending, of a[m * kRowStep + k * kColStep] * B[k][...].
/// `last`: lanes used of the last vector, all of them without kTail.
template <typename V, int M, int N, Into kInto, bool kHalf, bool kTail, int kRowStep, int kColStep>
void product(const float* a, const std::byte* b, std::int64_t b_stride, std::int64_t b_offset, std::int64_t k_begin,
             std::int64_t k_end, float* c, std::int64_t c_stride, int last, float scale) {
  const auto lanes = [last](int n) { return kTail && n == N - 1 ? last : V::kWidth; };
  typename V::Float acc[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      acc[m][n] = kInto == Into::scores ? V::set(0) : load_n<V>(c + m * c_stride + n * V::kWidth, lanes(n));
  }
  for (std::int64_t k = k_begin; k < k_end; ++k) {
    typename V::Float row[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) row[n] = load_kv<V, kHalf>(b, k * b_stride + b_offset + n * V::kWidth, lanes(n));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const auto scalar = V::set(a[m * kRowStep + k * kColStep]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) acc[m][n] = V::fma(scalar, row[n], acc[m][n]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      if (kInto == Into::scores) acc[m][n] = V::mul(acc[m][n], V::set(scale));
      store_n<V>(c + m * c_stride + n * V::kWidth, acc[m][n], lanes(n));
    }
  }
}

/// The product over `cols` columns of B, whose rows are b_stride apart.
template <typename V, int M, Into kInto, bool kHalf, int kRowStep, int kColStep>
void wide_product(const float* a, const std::byte* b, std::int64_t b_stride, std::int64_t cols, std::int64_t k_begin,
                  std::int64_t k_end, float* c, std::int64_t c_stride, float scale) {
  if (k_begin >= k_end) return;
  constexpr int kMost = vectors_together<V, M>();
  const auto columns = [&]<int N>(std::int64_t first, std::integral_constant<int, N>) {
    const std::int64_t last = std::min<std::int64_t>(V::kWidth, cols - first - (N - 1) * V::kWidth);
    const auto some = [&]<bool kTail>(std::bool_constant<kTail>) {
      product<V, M, N, kInto, kHalf, kTail, kRowStep, kColStep>(a, b, b_stride, first, k_begin, k_end, c + first,
                                                                c_stride, static_cast<int>(last), scale);
    };
    last == V::kWidth ? some(std::false_type()) : some(std::true_type());
  };
  for (std::int64_t first = 0; first < cols;) {
    const std::int64_t left = (cols - first + V::kWidth - 1) / V::kWidth;
    // No vector is left alone: one has too few sums under way for the fmas' latency.
    const std::int64_t count = kMost > 2 && left == kMost + 1 ? kMost - 1 : std::min<std::int64_t>(left, kMost);
    if constexpr (kMost >= 4)
      if (count == 4) columns(first, std::integral_constant<int, 4>());
    if constexpr (kMost >= 3)
      if (count == 3) columns(first, std::integral_constant<int, 3>());
    if constexpr (kMost >= 2)
      if (count == 2) columns(first, std::integral_constant<int, 2>());
    if (count == 1) columns(first, std::integral_constant<int, 1>());
    first += count * V::kWidth;
  }
}

/// Keys [begin, end) that a query sees, as absolute positions within the chunk; empty if begin >= end.
struct Visible {
  std::int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  bool is_block() const { return begin == 0 && end == kKvBlock; }
};

inline Visible visible_keys(const AttentionArgs& args, std::int64_t row) {
  const std::int64_t position = args.positions[row], first = args.chunk * kAttentionChunk;
  const std::int64_t newest = args.newest != nullptr ? args.newest[row] : position;
  const std::int64_t oldest = args.window > 0 ? position - args.window + 1 : 0;
  return {std::max(first, oldest), std::min(newest + 1, first + kAttentionChunk)};
}

/// Those of them in a block, from its first key on.
inline Visible within_block(const Visible& keys, std::int64_t block) {
  const std::int64_t from = block * kKvBlock;
  const Visible seen = {std::clamp<std::int64_t>(keys.begin - from, 0, kKvBlock),
                        std::clamp<std::int64_t>(keys.end - from, 0, kKvBlock)};
  return seen.empty() ? Visible{} : seen;
}

/// What scores lose by the distance of their keys, before or behind the query. query: of the tile, over rows and heads.
inline void lean(const AttentionArgs& args, std::int64_t query, std::int64_t block, float* scores) {
  const float slope = args.slopes[query % args.group];
  const std::int64_t nearest = block * kKvBlock - args.positions[query / args.group];
  for (std::int64_t i = 0; i < kKvBlock; ++i)
    scores[i] = fused(slope, static_cast<float>(-std::abs(nearest + i)), scores[i]);
}

/// Scaled scores of one query in a block are finished: capped, leaned, those of keys that it does not see -inf.
template <typename V>
void finish_scores(const AttentionArgs& args, std::int64_t query, std::int64_t block, const Visible& seen,
                   float* scores) {
  if (args.cap > 0) softcap<V>(scores, args.cap, kKvBlock);
  if (args.slopes != nullptr) lean(args, query, block, scores);
  if (seen.is_block()) return;
  std::fill(scores, scores + seen.begin, kMinusInfinity);
  std::fill(scores + seen.end, scores + kKvBlock, kMinusInfinity);
}

/// Scaled scores of `count` queries, from `first` on, in one block become weights: running maxima and sums move on, acc
/// is rescaled to the new maxima. seen: the keys of the block that each query sees; those that see none stay as they
/// are. Each step takes all queries before the next begins, so that their latencies hide one another.
template <typename V>
void soften(const AttentionArgs& args, std::int64_t first, int count, std::int64_t block, const Visible* seen,
            float* scores, float* acc) {
  constexpr int kMost = std::max(max_group<V>(), V::kWidth);
  alignas(64) float most[kMost], keep[kMost];
  for (int m = 0; m < count; ++m) {
    most[m] = keep[m] = 0;
    if (seen[m].empty()) continue;
    finish_scores<V>(args, first + m, block, seen[m], scores + m * kKvBlock);
    const float before = args.max[first + m];
    most[m] = Lane::max(before, max_of<V>(scores + m * kKvBlock, kKvBlock));
    keep[m] = before - most[m];
  }
  for_each_vector<V>(count, [&](std::int64_t i, int n) { store_n<V>(keep + i, exp_of<V>(load_n<V>(keep + i, n)), n); });
  for (int m = 0; m < count; ++m) {
    if (seen[m].empty()) continue;
    float& sum = args.sum[first + m];
    sum = Lane::fma(sum, keep[m], exp_and_sum<V>(scores + m * kKvBlock, kKvBlock, most[m]));
    args.max[first + m] = most[m];
  }
  for (int m = 0; m < count; ++m) {
    if (keep[m] == 1.0f) continue;
    float* const row = acc + m * args.v_dim;
    for_each_vector<V>(args.v_dim, [&](std::int64_t i, int n) {
      store_n<V>(row + i, V::mul(load_n<V>(row + i, n), V::set(keep[m])), n);
    });
  }
}

/// Weights times values for M queries that may see different keys of the block: what all of them see together is one
/// product, the rest goes query by query, before and after it, so that every query adds its keys in ascending order.
/// v: [64, v_stride], of which the first v_dim channels are summed.
template <typename V, int M, bool kHalf>
void add_values(const float* weights, const std::byte* v, std::int64_t v_stride, const Visible* seen, float* acc,
                std::int64_t v_dim) {
  const auto together = [&](std::int64_t from, std::int64_t to) {
    wide_product<V, M, Into::sums, kHalf, kKvBlock, 1>(weights, v, v_stride, v_dim, from, to, acc, v_dim, 1);
  };
  std::int64_t begin = 0, end = kKvBlock;
  for (int m = 0; m < M; ++m) {
    begin = std::max(begin, seen[m].begin);
    end = std::min(end, seen[m].end);
  }
  if (begin == 0 && end == kKvBlock) return together(0, kKvBlock);
  end = std::max(begin, end);
  const auto alone = [&](int m, std::int64_t from, std::int64_t to) {
    wide_product<V, 1, Into::sums, kHalf, kKvBlock, 1>(weights + m * kKvBlock, v, v_stride, v_dim, from, to,
                                                       acc + m * v_dim, v_dim, 1);
  };
  for (int m = 0; m < M; ++m) alone(m, seen[m].begin, std::min(seen[m].end, begin));
  together(begin, end);
  for (int m = 0; m < M; ++m) alone(m, std::max(seen[m].begin, end), seen[m].end);
}

/// A block of q8_0 keys as floats, [head_dim, 64].
template <typename V>
void decode_keys(const std::byte* block, std::int64_t head_dim, float* out) {
  const auto* values = reinterpret_cast<const std::int8_t*>(block);
  const auto* scales = reinterpret_cast<const std::uint16_t*>(block + head_dim * kKvBlock);
  alignas(64) float scale[kKvBlock];
  for (std::int64_t d = 0; d < head_dim; ++d) {
    if (d % kKvGroup == 0)
      for_each_vector<V>(kKvBlock, [&](std::int64_t i, int) {
        V::store(scale + i, V::load_half(scales + d / kKvGroup * kKvBlock + i));
      });
    for (std::int64_t i = 0; i < kKvBlock; ++i)
      out[d * kKvBlock + i] = static_cast<float>(values[d * kKvBlock + i]) * scale[i];
  }
}

/// A block of q4_0 keys as floats, [head_dim, 64].
template <typename V>
void decode_nibble_keys(const std::byte* block, std::int64_t head_dim, float* out) {
  constexpr std::int64_t kRows = kKvGroup / 2;  // of bytes, for the channels of a scale
  const auto* rows = reinterpret_cast<const std::int8_t*>(block);
  const auto* scales = reinterpret_cast<const std::uint16_t*>(block + head_dim / 2 * kKvBlock);
  alignas(64) float scale[kKvBlock];
  for (std::int64_t g = 0; g < head_dim / kKvGroup; ++g, scales += kKvBlock) {
    for_each_vector<V>(kKvBlock, [&](std::int64_t i, int) { V::store(scale + i, V::load_half(scales + i)); });
    for (std::int64_t c = 0; c < kRows; ++c, rows += kKvBlock) {
      float *low = out + (g * kKvGroup + c) * kKvBlock, *high = low + kRows * kKvBlock;
      for (std::int64_t i = 0; i < kKvBlock; ++i) {
        const std::int32_t two = rows[i];
        low[i] = static_cast<float>(two << 28 >> 28) * scale[i];
        high[i] = static_cast<float>(two >> 4) * scale[i];
      }
    }
  }
}

/// A block of q4_0 values as floats, [64, head_dim].
inline void decode_nibble_values(const std::byte* block, std::int64_t head_dim, float* out) {
  constexpr std::int64_t kBytes = kKvGroup / 2;
  const auto* bytes = reinterpret_cast<const std::int8_t*>(block);
  const auto* scales = reinterpret_cast<const std::uint16_t*>(block + head_dim / 2 * kKvBlock);
  for (std::int64_t group = 0; group < kKvBlock * head_dim / kKvGroup; ++group, bytes += kBytes, out += kKvGroup) {
    const float scale = half_to_float(scales[group]);
    for (std::int64_t i = 0; i < kBytes; ++i) {
      const std::int32_t two = bytes[i];
      out[i] = static_cast<float>(two << 28 >> 28) * scale;
      out[i + kBytes] = static_cast<float>(two >> 4) * scale;
    }
  }
}

/// Levels of fields of two bits and, of three, of their signs (tensor/kv_codec.h), as floats before their scale.
inline float level_of(std::uint32_t field) {
  return static_cast<float>(static_cast<std::int8_t>(kKvLevels2 >> 8 * field));
}
inline float level_of(std::uint32_t field, std::uint32_t sign) {
  const auto magnitude = static_cast<std::int32_t>(kKvLevels3 >> 8 * field & 255),
             minus = -static_cast<std::int32_t>(sign);
  return static_cast<float>((magnitude ^ minus) - minus);
}

/// A block of keys of few bits as floats, [head_dim, 64].
template <typename V, bool kSigns>
void decode_few_keys(const std::byte* block, std::int64_t head_dim, float* out) {
  const std::int64_t group = kv_few_group(head_dim), quarter = group / 4, eighth = group / 8;
  const auto* fields = reinterpret_cast<const std::uint8_t*>(block);
  const std::uint8_t* signs = fields + head_dim / 4 * kKvBlock;
  const auto* scales = reinterpret_cast<const std::uint16_t*>(signs + (kSigns ? head_dim / 8 * kKvBlock : 0));
  alignas(64) float scale[kKvBlock];
  for (std::int64_t g = 0; g < head_dim / group; ++g, scales += kKvBlock) {
    for_each_vector<V>(kKvBlock, [&](std::int64_t i, int) { V::store(scale + i, V::load_half(scales + i)); });
    for (std::int64_t c = 0; c < group; ++c, out += kKvBlock) {
      const std::uint8_t* const field = fields + (g * quarter + c % quarter) * kKvBlock;
      const std::uint8_t* const sign = signs + (g * eighth + c % eighth) * kKvBlock;
      const auto at = static_cast<int>(c / quarter * 2), sign_at = static_cast<int>(c / eighth);
      for (std::int64_t i = 0; i < kKvBlock; ++i) {
        const std::uint32_t two = field[i] >> at & 3U;
        out[i] = (kSigns ? level_of(two, sign[i] >> sign_at & 1U) : level_of(two)) * scale[i];
      }
    }
  }
}

/// A block of values of few bits as floats, [64, head_dim], where a scale is of 8 * kEighth channels.
template <bool kSigns, int kEighth>
void decode_few_values(const std::byte* block, std::int64_t head_dim, float* out) {
  const auto* fields = reinterpret_cast<const std::uint8_t*>(block);
  const std::uint8_t* signs = fields + head_dim / 4 * kKvBlock;
  const auto* scales = reinterpret_cast<const std::uint16_t*>(signs + (kSigns ? head_dim / 8 * kKvBlock : 0));
  const std::int64_t groups = kKvBlock * head_dim / (8 * kEighth);
  for (std::int64_t g = 0; g < groups; ++g, fields += 2 * kEighth, signs += kEighth, out += 8 * kEighth) {
    const float scale = half_to_float(scales[g]);
#pragma GCC unroll 8
    for (int part = 0; part < 8; ++part) {  // of an eighth of the channels
#pragma GCC unroll 1  // g++ takes this loop apart before it sees vectors in it: a megabyte, and a minute
      for (int c = 0; c < kEighth; ++c) {
        const std::uint32_t two = fields[part % 2 * kEighth + c] >> part / 2 * 2 & 3U;
        out[part * kEighth + c] = (kSigns ? level_of(two, signs[c] >> part & 1U) : level_of(two)) * scale;
      }
    }
  }
}
template <bool kSigns>
void decode_few_values(const std::byte* block, std::int64_t head_dim, float* out) {
  switch (kv_few_group(head_dim)) {
    case 32:
      return decode_few_values<kSigns, 4>(block, head_dim, out);
    case 64:
      return decode_few_values<kSigns, 8>(block, head_dim, out);
    case 128:
      return decode_few_values<kSigns, 16>(block, head_dim, out);
    case 256:
      return decode_few_values<kSigns, 32>(block, head_dim, out);
    default:  // of kMostQuantizedKvDim
      return decode_few_values<kSigns, 64>(block, head_dim, out);
  }
}

template <typename V, bool kKeys, bool kSigns>
void decode_few(const std::byte* block, std::int64_t head_dim, float* out) {
  if constexpr (kKeys)
    decode_few_keys<V, kSigns>(block, head_dim, out);
  else
    decode_few_values<kSigns>(block, head_dim, out);
}

/// A block of f16 as floats: keys and values alike.
template <typename V>
void decode_halves(const std::byte* block, std::int64_t count, float* out) {
  const auto* from = reinterpret_cast<const std::uint16_t*>(block);
  for_each_vector<V>(count, [&](std::int64_t i, int n) {
    store_n<V>(out + i, n == V::kWidth ? V::load_half(from + i) : V::load_half_first(from + i, n), n);
  });
}

/// A block of q8_0 values as floats, [keys, head_dim] of its [64, head_dim].
inline void decode_values(const std::byte* block, std::int64_t head_dim, std::int64_t keys, float* out) {
  const auto* values = reinterpret_cast<const std::int8_t*>(block);
  const auto* scales = reinterpret_cast<const std::uint16_t*>(block + head_dim * kKvBlock);
  for (std::int64_t group = 0; group < keys * head_dim / kKvGroup; ++group) {
    const float scale = half_to_float(scales[group]);
    for (std::int64_t i = group * kKvGroup; i < (group + 1) * kKvGroup; ++i)
      out[i] = static_cast<float>(values[i]) * scale;
  }
}

/// A block of K or V as the products take it: floats, or halves if they read those, where it lies, others decoded into
/// `scratch`.
template <typename V, bool kKeys>
const std::byte* plain_block(const AttentionArgs& args, std::int64_t number, bool halves, float* scratch) {
  const std::byte* const block = (kKeys ? args.k_blocks : args.v_blocks)[number];
  const std::int64_t head_dim = args.head_dim;
  switch ((args.plain_blocks >> number & 1) != 0 ? DType::f16 : args.kv_dtype) {
    case DType::f32:
      return block;
    case DType::f16:
      if (halves) return block;
      decode_halves<V>(block, (kKeys ? head_dim : args.v_dim) * kKvBlock, scratch);
      break;
    case DType::q4_0:
      if constexpr (kKeys)
        decode_nibble_keys<V>(block, head_dim, scratch);
      else
        decode_nibble_values(block, head_dim, scratch);
      break;
    case DType::q3_k:
      decode_few<V, kKeys, true>(block, head_dim, scratch);
      break;
    case DType::q2_0:
      decode_few<V, kKeys, false>(block, head_dim, scratch);
      break;
    default:
      if constexpr (kKeys)
        decode_keys<V>(block, head_dim, scratch);
      else
        decode_values(block, head_dim, kKvBlock, scratch);
  }
  return reinterpret_cast<const std::byte*>(scratch);
}

/// Queries of a tile that go over a block together, so that it comes from beyond the nearest cache once for all of
/// them.
constexpr std::int64_t kTogether = 192;
/// On the stack, which base/os/thread.h keeps small: a decoded block, the queries' scores in a block, the queries.
constexpr std::int64_t kScratchFloats = 40 * 1024;

/// Floats of a block that is decoded, or widened from halves; 0: products read what lies there.
inline std::int64_t decoded_floats(const AttentionArgs& args) {
  const std::int64_t dim = std::max(args.head_dim, args.v_dim);
  return args.kv_dtype == DType::f32 || dim > kMostQuantizedKvDim ? 0 : kKvBlock * dim;
}

/// How many queries go together, so that the scratch holds all that is theirs.
inline std::int64_t most_together(const AttentionArgs& args) {
  return std::clamp<std::int64_t>((kScratchFloats - decoded_floats(args)) / (args.head_dim + kKvBlock), 1, kTogether);
}

/// They are worked in groups of at most max_group(), of even size.
template <typename V>
struct QueryGroups {
  std::int64_t count;
  std::int64_t first[kTogether + 1];  // of each group; then where the last ends

  explicit QueryGroups(std::int64_t queries) : count((queries + max_group<V>() - 1) / max_group<V>()) {
    first[0] = 0;
    for (std::int64_t i = 0; i < count; ++i)
      first[i + 1] = first[i] + (queries - first[i] + count - i - 1) / (count - i);
  }
  int size(std::int64_t group) const { return static_cast<int>(first[group + 1] - first[group]); }
};

/// The queries of each group, [head_dim, M], one group after the other; a single query where it lies.
template <typename V>
const float* pack_queries(const AttentionArgs& args, std::int64_t first, const QueryGroups<V>& groups, float* packed) {
  alignas(64) float turned[kMostQuantizedKvDim];
  const std::int64_t head_dim = args.head_dim;
  const auto query = [&](std::int64_t i) {
    const float* const from =
        args.q + (first + i) / args.group * args.q_row_stride + (first + i) % args.group * args.q_head_stride;
    if (args.rotation == 0) return from;
    std::copy(from, from + head_dim, turned);
    rotate<V>(turned, head_dim, args.rotation);
    return static_cast<const float*>(turned);
  };
  if (groups.first[groups.count] == 1 && args.rotation == 0) return query(0);
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const std::int64_t at = groups.first[g], size = groups.size(g);
    for (std::int64_t m = 0; m < size; ++m) {
      const float* const from = query(at + m);
      for (std::int64_t d = 0; d < head_dim; ++d) packed[at * head_dim + d * size + m] = from[d];
    }
  }
  return packed;
}

/// The scaled scores of M queries, [head_dim, M], in a block of keys.
template <typename V, int M, bool kHalf>
void score_keys_of_block(const float* q, const std::byte* keys, std::int64_t head_dim, float scale, float* scores) {
  wide_product<V, M, Into::scores, kHalf, 1, M>(q, keys, kKvBlock, kKvBlock, 0, head_dim, scores, kKvBlock, scale);
}

/// The products of a block, by the size of the group.
struct BlockProducts {
  void (*score)(const float* q, const std::byte* keys, std::int64_t head_dim, float scale, float* scores);
  void (*add)(const float* weights, const std::byte* v, std::int64_t v_stride, const Visible* seen, float* acc,
              std::int64_t v_dim);
};
template <typename V, bool kHalf, int... kSizes>
const BlockProducts* block_products(std::integer_sequence<int, kSizes...>) {
  static constexpr std::array<BlockProducts, sizeof...(kSizes)> kProducts = {
      BlockProducts{score_keys_of_block<V, kSizes + 1, kHalf>, add_values<V, kSizes + 1, kHalf>}...};
  return kProducts.data();
}

/// The raw bytes of a block of `numbers` in K or V, or somewhat fewer: as many as are worth asking for ahead.
inline std::int64_t bytes_ahead(const AttentionArgs& args, std::int64_t numbers) {
  return args.kv_dtype == DType::f32 ? numbers * 4 : args.kv_dtype == DType::f16 ? numbers * 2 : numbers / 4;
}

/// Asks for part i of n of a block that is needed next: all of it at once would take all fill buffers of the core.
inline void ask_for(const std::byte* block, std::int64_t bytes, std::int64_t i, std::int64_t n) {
  constexpr std::int64_t kLine = 64;
  if (block == nullptr) return;
  for (std::int64_t at = bytes * i / n; at < bytes * (i + 1) / n; at += kLine) __builtin_prefetch(block + at, 0, 2);
}

/// Queries [first, first + queries) of the flattened tile over the whole chunk; at most most_together().
template <typename V>
void attend_together(const AttentionArgs& args, std::int64_t first, std::int64_t queries) {
  alignas(64) float scratch[kScratchFloats];
  float* const decoded = scratch;
  float* const scores = decoded + decoded_floats(args);
  float* const packed = scores + queries * kKvBlock;
  const QueryGroups<V> groups(queries);
  // Products read halves where they lie; what several groups read is widened once for all of them.
  const bool halves = args.kv_dtype == DType::f16 && (groups.count <= 2 || decoded_floats(args) == 0);
  constexpr auto kSizes = std::make_integer_sequence<int, max_group<V>()>();
  const BlockProducts* const products = halves ? block_products<V, true>(kSizes) : block_products<V, false>(kSizes);
  const float* const q = pack_queries<V>(args, first, groups, packed);
  Visible whole[kTogether];
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
  for (std::int64_t i = 0; i < queries; ++i) {
    whole[i] = visible_keys(args, (first + i) / args.group);
    if (whole[i].empty()) continue;
    begin = std::min(begin, whole[i].begin);
    end = std::max(end, whole[i].end);
  }
  float* const acc = args.acc + first * args.v_dim;
  std::fill(acc, acc + queries * args.v_dim, 0.0f);
  std::fill(args.max + first, args.max + first + queries, kMinusInfinity);
  std::fill(args.sum + first, args.sum + first + queries, 0.0f);
  const std::int64_t first_block = args.chunk * (kAttentionChunk / kKvBlock);
  for (std::int64_t block = begin / kKvBlock; block * kKvBlock < end; ++block) {
    Visible seen[kTogether];
    for (std::int64_t i = 0; i < queries; ++i) seen[i] = within_block(whole[i], block);
    const bool asks = groups.count > 2 && (block + 1) * kKvBlock < end;  // a few queries read faster than they compute
    const std::byte* const next_keys = asks ? args.k_blocks[block + 1 - first_block] : nullptr;
    const std::byte* const next_values = asks ? args.v_blocks[block + 1 - first_block] : nullptr;
    const std::byte* const keys = plain_block<V, true>(args, block - first_block, halves, decoded);
    for (std::int64_t g = 0; g < groups.count; ++g) {
      const std::int64_t at = groups.first[g];
      const int size = groups.size(g);
      ask_for(next_keys, bytes_ahead(args, args.head_dim * kKvBlock), g, groups.count);
      if (std::all_of(seen + at, seen + at + size, [](const Visible& some) { return some.empty(); })) continue;
      products[size - 1].score(q + at * args.head_dim, keys, args.head_dim, args.scale, scores + at * kKvBlock);
      soften<V>(args, first + at, size, block, seen + at, scores + at * kKvBlock, acc + at * args.v_dim);
    }
    const std::byte* const values = plain_block<V, false>(args, block - first_block, halves, decoded);
    for (std::int64_t g = 0; g < groups.count; ++g) {
      const std::int64_t at = groups.first[g];
      ask_for(next_values, bytes_ahead(args, args.v_dim * kKvBlock), g, groups.count);
      products[groups.size(g) - 1].add(scores + at * kKvBlock, values, args.v_dim, seen + at, acc + at * args.v_dim,
                                       args.v_dim);
    }
  }
}

template <typename V>
void attend_keys_and_values(const AttentionArgs& args) {
  const std::int64_t queries = args.rows * args.group;
  const std::int64_t most = most_together(args);
  for (std::int64_t first = 0; first < queries; first += most)
    attend_together<V>(args, first, std::min(most, queries - first));
}

template <typename V>
void attention_merge(const float* acc, std::int64_t acc_stride, const float* max, const float* sum,
                     std::int64_t stat_stride, std::int64_t chunks, std::int64_t head_dim, float sink, float* out) {
  float most = sink;
  for (std::int64_t c = 0; c < chunks; ++c) {
    if (sum[c * stat_stride] != 0) most = Lane::max(most, max[c * stat_stride]);
  }
  float total = sink == kMinusInfinity ? 0 : exp_of<Lane>(sink - most);
  std::fill(out, out + head_dim, 0.0f);
  for (std::int64_t c = 0; c < chunks; ++c) {
    if (sum[c * stat_stride] == 0) continue;
    const float weight = exp_of<Lane>(max[c * stat_stride] - most);
    total = Lane::fma(sum[c * stat_stride], weight, total);
    add_scaled<V>(out, acc + c * acc_stride, weight, head_dim);
  }
  if (total == 0) return;
  for_each_vector<V>(
      head_dim, [&](std::int64_t i, int n) { store_n<V>(out + i, V::div(load_n<V>(out + i, n), V::set(total)), n); });
}

}  // namespace
}  // namespace millrace::kernels

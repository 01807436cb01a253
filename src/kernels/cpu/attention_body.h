// Flash-style attention of one KV head over one chunk of keys, written once over a vector type.
//
// The queries of a tile ([rows, group], flattened) are worked in groups of M. For each block of 64 keys a group does
// two small products with the same kernel, C[M, n] += A[M, k] B[k, n]: the scores (B = the K block, lanes are keys)
// and the weighted values (B = the V block, lanes are channels), with the online softmax between them. A query's
// arithmetic does not depend on M or on its neighbours: each sum runs in ascending order in a lane of its own, and keys
// a query cannot see never enter its sums, not even multiplied by zero (they may hold anything).
// Source: Dao et al., FlashAttention (2022); Milakov and Gimelshein, Online normalizer calculation for softmax (2018).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/cpu/ops_body.h"
#include "kernels/kernels.h"
#include "tensor/half.h"
#include "tensor/kv_codec.h"

namespace millrace::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kMaxPackedDim = 512;  // queries are packed on the stack up to this head_dim

enum class KvForm { half, single, quantized };

/// Vectors a group of M queries works on at once: their accumulators, the vectors of B and one broadcast must fit.
template <typename V, int M>
constexpr int registers_per_row() {
  return M * 4 + 4 + 1 <= V::kRegisters && 4 * V::kWidth <= kKvBlock ? 4 : M * 2 + 2 + 1 <= V::kRegisters ? 2 : 1;
}
/// The largest M: two vectors a query, everything in registers.
template <typename V>
constexpr int max_group() {
  return V::kRegisters >= 32 ? 12 : V::kWidth > 1 ? 6 : 4;
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

/// C[m][0 .. N * kWidth) += sum over k in [k_begin, k_end), ascending, of a[m * kRowStep + k * kColStep] * B[k][...].
/// `last`: lanes used of the last vector.
template <typename V, int M, int N, bool kHalf, int kRowStep, int kColStep>
void product(const float* a, const std::byte* b, std::int64_t b_stride, std::int64_t b_offset, std::int64_t k_begin,
             std::int64_t k_end, float* c, std::int64_t c_stride, int last) {
  typename V::Float acc[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) acc[m][n] = load_n<V>(c + m * c_stride + n * V::kWidth, n == N - 1 ? last : V::kWidth);
  }
  for (std::int64_t k = k_begin; k < k_end; ++k) {
    typename V::Float row[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      row[n] = load_kv<V, kHalf>(b, k * b_stride + b_offset + n * V::kWidth, n == N - 1 ? last : V::kWidth);
    }
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
    for (int n = 0; n < N; ++n) store_n<V>(c + m * c_stride + n * V::kWidth, acc[m][n], n == N - 1 ? last : V::kWidth);
  }
}

/// The product over `cols` columns of B, whose rows are b_stride apart.
template <typename V, int M, bool kHalf, int kRowStep, int kColStep>
void wide_product(const float* a, const std::byte* b, std::int64_t b_stride, std::int64_t cols, std::int64_t k_begin,
                  std::int64_t k_end, float* c, std::int64_t c_stride) {
  if (k_begin >= k_end) return;
  constexpr int kCount = registers_per_row<V, M>();
  std::int64_t n = 0, left = cols;
  for (; left >= kCount * V::kWidth; n += kCount * V::kWidth, left -= kCount * V::kWidth) {
    product<V, M, kCount, kHalf, kRowStep, kColStep>(a, b, b_stride, n, k_begin, k_end, c + n, c_stride, V::kWidth);
  }
  for (; left > 0; n += V::kWidth, left -= V::kWidth) {
    const int lanes = static_cast<int>(std::min<std::int64_t>(left, V::kWidth));
    product<V, M, 1, kHalf, kRowStep, kColStep>(a, b, b_stride, n, k_begin, k_end, c + n, c_stride, lanes);
  }
}

/// Keys [begin, end) that a query sees, as absolute positions within the chunk; empty if begin >= end.
struct Visible {
  std::int64_t begin = 0, end = 0;
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
  return seen.begin < seen.end ? seen : Visible{};
}

/// What scores lose by the distance of their keys. query: of the tile, over rows and heads.
inline void lean(const AttentionArgs& args, std::int64_t query, std::int64_t block, float* scores) {
  const float slope = args.slopes[query % args.group];
  const std::int64_t nearest = block * kKvBlock - args.positions[query / args.group];
  for (std::int64_t i = 0; i < kKvBlock; ++i)
    scores[i] = __builtin_fmaf(slope, static_cast<float>(nearest + i), scores[i]);
}

/// Scores of one query in one block become weights: running maximum and sum move on, acc is rescaled to the new
/// maximum. seen: the keys of the block that the query sees, not empty.
template <typename V>
void soften(const AttentionArgs& args, std::int64_t query, std::int64_t block, const Visible& seen, float* scores,
            float* acc) {
  const std::int64_t begin = seen.begin, end = seen.end, v_dim = args.v_dim;
  float &most = args.max[query], &sum = args.sum[query];
  for_each_vector<V>(
      kKvBlock, [&](std::int64_t i, int) { V::store(scores + i, V::mul(V::load(scores + i), V::set(args.scale))); });
  if (args.cap > 0) softcap<V>(scores, args.cap, kKvBlock);
  if (args.slopes != nullptr) lean(args, query, block, scores);
  for (std::int64_t i = 0; i < begin; ++i) scores[i] = kMinusInfinity;
  for (std::int64_t i = end; i < kKvBlock; ++i) scores[i] = kMinusInfinity;
  const float before = most;
  most = Lane::max(before, max_of<V>(scores, kKvBlock));
  const float keep = exp_of<Lane>(before - most);
  sum = Lane::fma(sum, keep, exp_and_sum<V>(scores, kKvBlock, most));
  if (keep == 1.0f) return;
  for_each_vector<V>(
      v_dim, [&](std::int64_t i, int n) { store_n<V>(acc + i, V::mul(load_n<V>(acc + i, n), V::set(keep)), n); });
}

/// Weights times values for M queries that may see different keys of the block: what all of them see together is one
/// product, the rest goes query by query, before and after it, so that every query adds its keys in ascending order.
/// v: [64, v_stride], of which the first v_dim channels are summed.
template <typename V, int M, bool kHalf>
void add_values(const float* weights, const std::byte* v, std::int64_t v_stride, const Visible* seen, float* acc,
                std::int64_t v_dim) {
  std::int64_t begin = 0, end = kKvBlock;
  for (int m = 0; m < M; ++m) {
    begin = std::max(begin, seen[m].begin);
    end = std::min(end, seen[m].end);
  }
  end = std::max(begin, end);
  const auto alone = [&](int m, std::int64_t from, std::int64_t to) {
    wide_product<V, 1, kHalf, kKvBlock, 1>(weights + m * kKvBlock, v, v_stride, v_dim, from, to, acc + m * v_dim,
                                           v_dim);
  };
  for (int m = 0; m < M; ++m) alone(m, seen[m].begin, std::min(seen[m].end, begin));
  wide_product<V, M, kHalf, kKvBlock, 1>(weights, v, v_stride, v_dim, begin, end, acc, v_dim);
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

/// A block of K or V as the products take it: float or half where it lies, quantized ones decoded into `scratch`.
template <typename V, KvForm kForm, bool kKeys>
const std::byte* plain_block(const AttentionArgs& args, std::int64_t number, float* scratch) {
  const std::byte* const block = (kKeys ? args.k_blocks : args.v_blocks)[number];
  if constexpr (kForm == KvForm::quantized) {
    const std::int64_t head_dim = args.head_dim;
    const DType dtype = (args.plain_blocks >> number & 1) != 0 ? DType::f16 : args.kv_dtype;
    switch (dtype) {
      case DType::f16:
        decode_halves<V>(block, head_dim * kKvBlock, scratch);
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
  return block;
}

/// Queries [first, first + M) of the flattened tile over the whole chunk.
template <typename V, int M, KvForm kForm>
void attend_group(const AttentionArgs& args, std::int64_t first) {
  alignas(64) float packed[M == 1 ? 1 : M * kMaxPackedDim];  // [head_dim, M]; a single query is used where it lies
  alignas(64) float scores[M * kKvBlock];
  alignas(64) float decoded[kForm == KvForm::quantized ? kKvBlock * kMostQuantizedKvDim : 1];
  constexpr bool kHalf = kForm == KvForm::half;
  const auto query = [&](int m) {
    const std::int64_t index = first + m;
    return args.q + index / args.group * args.q_row_stride + index % args.group * args.q_head_stride;
  };
  alignas(64) float turned[kForm == KvForm::quantized ? kMaxPackedDim : 1];
  const auto turned_query = [&](int m) {
    if (kForm != KvForm::quantized || args.rotation == 0) return query(m);
    std::copy(query(m), query(m) + args.head_dim, turned);
    rotate<V>(turned, args.head_dim, args.rotation);
    return static_cast<const float*>(turned);
  };
  const float* q = packed;
  if constexpr (M == 1) {
    q = turned_query(0);
  } else {
    for (int m = 0; m < M; ++m) {
      const float* from = turned_query(m);
      for (std::int64_t d = 0; d < args.head_dim; ++d) packed[d * M + m] = from[d];
    }
  }
  Visible whole[M];
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
  for (int m = 0; m < M; ++m) {
    whole[m] = visible_keys(args, (first + m) / args.group);
    if (whole[m].begin >= whole[m].end) continue;
    begin = std::min(begin, whole[m].begin);
    end = std::max(end, whole[m].end);
  }
  float* acc = args.acc + first * args.v_dim;
  std::fill(acc, acc + M * args.v_dim, 0.0f);
  std::fill(args.max + first, args.max + first + M, kMinusInfinity);
  std::fill(args.sum + first, args.sum + first + M, 0.0f);
  const std::int64_t first_block = args.chunk * (kAttentionChunk / kKvBlock);
  for (std::int64_t block = begin / kKvBlock; block * kKvBlock < end; ++block) {
    std::fill(scores, scores + M * kKvBlock, 0.0f);
    const std::byte* keys = plain_block<V, kForm, true>(args, block - first_block, decoded);
    wide_product<V, M, kHalf, 1, M>(q, keys, kKvBlock, kKvBlock, 0, args.head_dim, scores, kKvBlock);
    Visible seen[M];
    for (int m = 0; m < M; ++m) {
      seen[m] = within_block(whole[m], block);
      if (seen[m].begin >= seen[m].end) continue;
      soften<V>(args, first + m, block, seen[m], scores + m * kKvBlock, acc + m * args.v_dim);
    }
    const std::byte* values = plain_block<V, kForm, false>(args, block - first_block, decoded);
    add_values<V, M, kHalf>(scores, values, args.v_dim, seen, acc, args.v_dim);
  }
}

template <typename V, KvForm kForm, int... kGroups>
void attend_tile(const AttentionArgs& args, std::integer_sequence<int, kGroups...>) {
  using Attend = void (*)(const AttentionArgs&, std::int64_t);
  static constexpr std::array<Attend, sizeof...(kGroups)> kAttend = {attend_group<V, kGroups + 1, kForm>...};
  const std::int64_t most = args.head_dim > kMaxPackedDim ? 1 : max_group<V>();
  const std::int64_t queries = args.rows * args.group;
  const std::int64_t groups = (queries + most - 1) / most;
  for (std::int64_t i = 0, first = 0; i < groups; ++i) {  // groups of even size
    const std::int64_t size = (queries - first + groups - i - 1) / (groups - i);
    kAttend[static_cast<std::size_t>(size - 1)](args, first);
    first += size;
  }
}

template <typename V>
void attend_keys_and_values(const AttentionArgs& args) {
  constexpr auto kGroups = std::make_integer_sequence<int, max_group<V>()>();
  if (args.kv_dtype == DType::f16) {
    attend_tile<V, KvForm::half>(args, kGroups);
  } else if (args.kv_dtype != DType::f32) {
    attend_tile<V, KvForm::quantized>(args, kGroups);
  } else {
    attend_tile<V, KvForm::single>(args, kGroups);
  }
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

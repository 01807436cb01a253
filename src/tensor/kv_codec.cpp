#include "tensor/kv_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "tensor/encode_blocks.h"
#include "tensor/half.h"
#include "tensor/lanes.h"

namespace millrace {
namespace {

constexpr float kDivisors[] = {-8.0f, -7.5f, -8.5f, -9.0f};

using Four = float __attribute__((vector_size(16)));

/// Sums of four neighbours, (a + b) + (c + d), of sixteen.
Four sums_of_four(const float* x) {
  Four v[4];
  std::memcpy(v, x, sizeof v);
  const Four ab = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5), cd = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
  const Four ef = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5), gh = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
  return (__builtin_shufflevector(ab, ef, 0, 1, 4, 5) + __builtin_shufflevector(ab, ef, 2, 3, 6, 7)) +
         (__builtin_shufflevector(cd, gh, 0, 1, 4, 5) + __builtin_shufflevector(cd, gh, 2, 3, 6, 7));
}

/// Levels of x with d, and the sum of the squares of what they miss. x, q: [kKvGroup].
float quantize_with(const float* x, float d, float* q) {
  const Lanes scale = splat(d), inverse = splat(d != 0 ? 1.0f / d : 0.0f), bottom = splat(-8), top = splat(7);
  alignas(64) float squares[kKvGroup];
  for (int i = 0; i < kKvGroup; i += kLanes) {
    const Lanes v = load_lanes(x + i), level = round_lanes(clamp(v * inverse, bottom, top)), missed = v - scale * level;
    store_lanes(q + i, level);
    store_lanes(squares + i, missed * missed);
  }
  const Four low = sums_of_four(squares), high = sums_of_four(squares + 16);
  return ((low[0] + low[1]) + (low[2] + low[3])) + ((high[0] + high[1]) + (high[2] + high[3]));
}

/// The sum of x, [count], a power of two, which is overwritten: neighbours first, then pairs of them, and so on.
float sum_of_neighbours(float* x, std::int64_t count) {
  for (; count > 1; count /= 2) {
    for (std::int64_t i = 0; i < count / 2; ++i) x[i] = x[2 * i] + x[2 * i + 1];
  }
  return x[0];
}

}  // namespace

KvGroup encode_kv_q4(const float* x) {
  alignas(64) float finite[kKvGroup], levels[2][kKvGroup];
  const Lanes low = splat(-kLargestEncodable), high = splat(kLargestEncodable);
  Lanes most_of = low, least_of = high;
  for (int i = 0; i < kKvGroup; i += kLanes) {
    const Lanes v = load_lanes(x + i), known = clamp(v == v ? v : Lanes{}, low, high);
    store_lanes(finite + i, known);
    most_of = larger(most_of, known);
    least_of = smaller(least_of, known);
  }
  float most = -kLargestEncodable, least = kLargestEncodable;
  for (int i = 0; i < kLanes; ++i) {
    most = std::max(most, most_of[i]);
    least = std::min(least, least_of[i]);
  }
  const float extreme = -least >= most ? least : most;
  KvGroup out;
  float best = 0;
  int taken = 0;  // of the two rows of levels
  for (const float divisor : kDivisors) {
    const std::uint16_t d = float_to_half(std::clamp(extreme / divisor, -kLargestHalf, kLargestHalf));
    const float error = quantize_with(finite, half_to_float(d), levels[1 - taken]);
    if (divisor != kDivisors[0] && !(error < best)) continue;
    best = error;
    out.d = d;
    taken = 1 - taken;
  }
  for (int i = 0; i < kKvGroup; ++i) out.q[i] = static_cast<std::int8_t>(static_cast<int>(levels[taken][i]));
  return out;
}

std::uint16_t encode_kv_few(DType dtype, const float* x, std::int64_t count, std::uint8_t* codes) {
  MR_ASSERT(count <= kMostKvFewGroup);
  const bool two = dtype == DType::q2_0;
  const KvMagnitudes levels = kv_magnitudes(dtype);
  alignas(64) float finite[kMostKvFewGroup], terms[kMostKvFewGroup] = {}, squares[kMostKvFewGroup] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    finite[i] = x[i] == x[i] ? std::clamp(x[i], -kLargestEncodable, kLargestEncodable) : 0.0F;
    terms[i] = finite[i] * finite[i];
  }
  float scale = std::sqrt(sum_of_neighbours(terms, count) / static_cast<float>(count)) / (two ? kKvRoot2 : kKvRoot3);
  const auto index_at = [&](float magnitude, float d) {
    int index = 0;
    for (int l = 0; l + 1 < levels.count; ++l) index += magnitude > levels.bound(l) * d ? 1 : 0;
    return index;
  };
  for (int again = 0; again < 2 && scale > 0; ++again) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float magnitude = std::fabs(finite[i]), level = levels.of(index_at(magnitude, scale));
      terms[i] = level * magnitude;
      squares[i] = level * level;
    }
    scale = sum_of_neighbours(terms, count) / sum_of_neighbours(squares, count);
  }
  const std::uint16_t d = float_to_half(std::min(scale, kLargestHalf));
  for (std::int64_t i = 0; i < count; ++i) {
    const int index = index_at(std::fabs(finite[i]), half_to_float(d)), negative = finite[i] < 0 ? 1 : 0;
    codes[i] = static_cast<std::uint8_t>(two ? (negative != 0 ? 1 - index : 2 + index) : index | negative << 2);
  }
  return d;
}

std::int64_t kv_row_bytes(DType dtype, std::int64_t head_dim) {
  if (!kv_has_few_bits(dtype)) return row_bytes(dtype, head_dim);
  const std::int64_t scales = head_dim / kv_few_group(head_dim) * 2;
  return head_dim / 4 + (dtype == DType::q3_k ? head_dim / 8 : 0) + scales;
}

}  // namespace millrace

#include "tensor/kv_codec.h"

#include <algorithm>
#include <cstring>

#include "tensor/encode_blocks.h"
#include "tensor/half.h"
#include "tensor/lanes.h"

namespace millrace {
namespace {

constexpr float kLargestHalf = 65504.0f;
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

}  // namespace millrace

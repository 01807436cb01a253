#include "tensor/kv_codec.h"

#include <algorithm>

#include "tensor/encode_blocks.h"
#include "tensor/half.h"
#include "tensor/lanes.h"

namespace millrace {
namespace {

constexpr float kLargestHalf = 65504.0f;
constexpr float kDivisors[] = {-8.0f, -7.5f, -8.5f, -9.0f};

/// Levels of x with d, and the sum of the squares of what they miss. x, q: [kKvGroup].
float quantize_with(const float* x, float d, float* q) {
  const Lanes scale = splat(d), inverse = splat(d != 0 ? 1.0f / d : 0.0f), bottom = splat(-8), top = splat(7);
  alignas(64) float squares[kKvGroup];
  for (int i = 0; i < kKvGroup; i += kLanes) {
    const Lanes v = load_lanes(x + i), level = round_lanes(clamp(v * inverse, bottom, top)), missed = v - scale * level;
    store_lanes(q + i, level);
    store_lanes(squares + i, missed * missed);
  }
  for (int count = kKvGroup / 2; count > 0; count /= 2)
    for (int i = 0; i < count; ++i) squares[i] = squares[2 * i] + squares[2 * i + 1];
  return squares[0];
}

}  // namespace

KvGroup encode_kv_q4(const float* x) {
  alignas(64) float finite[kKvGroup], levels[kKvGroup], best_levels[kKvGroup];
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
  for (const float divisor : kDivisors) {
    const std::uint16_t d = float_to_half(std::clamp(extreme / divisor, -kLargestHalf, kLargestHalf));
    const float error = quantize_with(finite, half_to_float(d), levels);
    if (divisor != kDivisors[0] && !(error < best)) continue;
    best = error;
    out.d = d;
    std::copy(levels, levels + kKvGroup, best_levels);
  }
  for (int i = 0; i < kKvGroup; ++i) out.q[i] = static_cast<std::int8_t>(static_cast<int>(best_levels[i]));
  return out;
}

}  // namespace millrace

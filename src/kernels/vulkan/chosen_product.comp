#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
#include "quantize.glsl"
#include "weights.glsl"
// Rows times the experts chosen for them: a workgroup has 32 rows of one entry's matrix. kernels/gpu/ops.h, ExpertCall.
const uint kTile = 1u, x_stride = 0u;
layout(local_size_x = 256) in;
layout(constant_id = 1) const uint kBiased = 0;  // 1: experts have biases, which lie where the shared expert's would
layout(push_constant) uniform Arguments {
  Addresses weight, up, shared_or_bias, shared_or_bias_up;
  Ints chosen;        // [entries]; or sorted, where expert_first is set
  Ints expert_first;  // [experts + 1]
  Floats x_all;
  Words q, scales;
  Floats y;
  Words y_q, y_scales;
  uint rows, cols, entries_per_x, address_stride, places_or_bias_stride, experts, effect, activation;
};
const uint kGated = 2u;  // Effect
Floats x;                // the entry's row

#include "products.glsl"

shared float results[kRows];

float with_bias(float result, Addresses bias, uint expert, uint n) {
  if (uint64_t(bias) == 0ul || n >= rows) return result;
  precise float sum = result + Floats(bias.v[0]).v[expert * places_or_bias_stride + n];
  return sum;
}

void main() {
  uint row = gl_LocalInvocationID.x / kTeam, t = gl_LocalInvocationID.x % kTeam, n = gl_WorkGroupID.x * kRows + row;
  uint entry = gl_WorkGroupID.y, expert = 0u;
  uint places = places_or_bias_stride;
  bool has_shared = kBiased == 0u && uint64_t(shared_or_bias) != 0ul, shares = has_shared && entry % places == places - 1u;
  if (uint64_t(expert_first) != 0ul) {
    uint at = uint(expert_first.v[0]) + entry;
    if (at >= uint(expert_first.v[experts])) return;  // the same in all threads
    while (at >= uint(expert_first.v[expert + 1u])) ++expert;
    entry = uint(chosen.v[at]);
  } else if (!shares) {
    expert = uint(chosen.v[has_shared ? entry / places * (places - 1u) + entry % places : entry]);
  }
  uint from = entry / entries_per_x;
  x = Floats(uint64_t(x_all) + 4ul * uint64_t(from) * uint64_t(cols));
#if FLOATS
  from = 0u;  // x begins there
#endif
  float result = product(shares ? shared_or_bias.v[0] : weight.v[expert * address_stride], n, from, 1u);
  if (kBiased != 0u) result = with_bias(result, shared_or_bias, expert, n);
  if (effect == kGated) {
    float other = product(shares ? shared_or_bias_up.v[0] : up.v[expert * address_stride], n, from, 1u);
    if (kBiased != 0u) other = with_bias(other, shared_or_bias_up, expert, n);
    if (t == 0u) result = gated(activation, result, other);
  }
  if (t == 0u && n < rows && uint64_t(y) != 0ul)
    Floats(uint64_t(y) + 4ul * (uint64_t(entry) * uint64_t(rows) + uint64_t(n))).v[0] = result;
  if (uint64_t(y_q) == 0ul) return;
  if (t == 0u) results[row] = result;
  barrier();
  if (gl_LocalInvocationID.x > 0u) return;
  float block[32];
  for (uint i = 0u; i < kRows; ++i) block[i] = results[i];
  put_block(block, y_q, y_scales, entry * (rows / 32u) + gl_WorkGroupID.x);
}

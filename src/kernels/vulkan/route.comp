#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
// The experts of a row by a softmax of its scores: a workgroup of 32 lanes a row. Lane l has experts l, l + 32, ...; its
// sum is in ascending order, and lanes are added by a tree.
const uint kLanes = 32u, kMostExperts = 1024u;
layout(local_size_x = 32) in;
layout(push_constant) uniform Arguments {
  Floats scores;
  Ints chosen;
  Floats weights;
  uint experts, top_k, normalize;
  float scale;
};

shared int left[kMostExperts];  // a probability's bits, which order as it does; -1: it is gone
shared float lanes[kLanes];
shared int best_of[kLanes];
shared uint place_of[kLanes];
shared float picked[kLanes];

void main() {
  uint row = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x;
  Floats from = Floats(uint64_t(scores) + 4ul * uint64_t(row) * uint64_t(experts));
  float most = negative(kInfinity);
  for (uint e = 0u; e < experts; ++e)
    if (!is_nan(from.v[e])) most = max(most, from.v[e]);
  precise float sum = 0.0;
  for (uint e = lane; e < experts; e += kLanes) {
    precise float below = from.v[e] - most;
    float p = exp_f32(below);
    left[e] = int(floatBitsToUint(p));
    sum = sum + p;
  }
  lanes[lane] = sum;
  barrier();
  for (uint step = kLanes / 2u; step > 0u; step /= 2u) {
    if (lane < step) {
      precise float both = lanes[lane] + lanes[lane + step];
      lanes[lane] = both;
    }
    barrier();
  }
  float total = lanes[0];
  for (uint e = lane; e < experts; e += kLanes)
    left[e] = int(floatBitsToUint(divide(uintBitsToFloat(uint(left[e])), total)) & 0x7fffffffu);
  precise float chosen_sum = 0.0;
  for (uint k = 0u; k < top_k; ++k) {
    int best = -1;
    uint place = experts;
    for (uint e = lane; e < experts; e += kLanes)
      if (left[e] > best) {
        best = left[e];
        place = e;
      }
    best_of[lane] = best;
    place_of[lane] = place;
    barrier();
    for (uint l = 0u; l < kLanes; ++l)
      if (best_of[l] > best || (best_of[l] == best && place_of[l] < place)) {
        best = best_of[l];
        place = place_of[l];
      }
    float probability = uintBitsToFloat(uint(best));
    chosen_sum = chosen_sum + probability;
    barrier();
    if (lane == 0u) {
      if (place < experts) left[place] = -1;
      chosen.v[row * top_k + k] = int(place);
      picked[k] = probability;
    }
    barrier();
  }
  if (lane < top_k) {
    precise float weight = (normalize != 0u ? divide(picked[lane], chosen_sum) : picked[lane]) * scale;
    weights.v[row * top_k + lane] = weight;
  }
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
// The first heads of each row to length 1, in place: kernels/gpu/heads.h, l2_norm_heads(). 32 threads have a head:
// element i is lane i % 32's, and a tree adds the lanes.
const uint kThreads = 128u, kLanes = 32u;
layout(local_size_x = 128) in;
layout(push_constant) uniform Arguments {
  Floats x;
  uint64_t cols;
  uint all_heads, heads, head_dim;
  float eps;
};

shared float lanes[kThreads];

void main() {
  uint thread = gl_LocalInvocationID.x, lane = thread % kLanes;
  uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  uint number = group * (kThreads / kLanes) + thread / kLanes;
  bool there = number < all_heads;
  uint64_t first = uint64_t(number / heads) * cols + uint64_t(number % heads * head_dim);
  Floats head = Floats(uint64_t(x) + 4ul * first);
  float squares = 0.0;
  for (uint i = lane; there && i < head_dim; i += kLanes) squares = fused(head.v[i], head.v[i], squares);
  lanes[thread] = squares;
  barrier();
  for (uint half_count = kLanes / 2u; half_count > 0u; half_count /= 2u) {
    if (lane < half_count) {
      precise float both = lanes[thread] + lanes[thread + half_count];
      lanes[thread] = both;
    }
    barrier();
  }
  precise float square = lanes[thread - lane] + eps;
  float scale = divide(1.0, square_root(square));
  for (uint i = lane; there && i < head_dim; i += kLanes) {
    precise float y = head.v[i] * scale;
    head.v[i] = y;
  }
}

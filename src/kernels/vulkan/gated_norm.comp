#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
// Of each head gated(gate, x / rms(x) * weight), and its int8 form: kernels/gpu/heads.h, GatedNormCall. A thread has
// four neighbouring channels; 32, 64 or 128 threads have a head, whose squares are summed as rms_norm.comp has it.
const uint kThreads = 128u, kLanes = 32u;
layout(local_size_x = 128) in;
layout(constant_id = 1) const uint kHeadThreads = 32;
layout(constant_id = 2) const uint kActivation = 0;
#define TOGETHER
#include "quantize.glsl"
layout(push_constant) uniform Arguments {
  Floats x, gate;
  Addresses weight;
  Floats to;
  Words q, scales;
  uint all_heads, head_dim;
  float eps;
};

shared float lanes[kThreads];

void main() {
  uint thread = gl_LocalInvocationID.x, within = thread % kHeadThreads;
  uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  uint head = group * (kThreads / kHeadThreads) + thread / kHeadThreads;
  bool there = head < all_heads && within < head_dim / 4u;
  uint64_t at = uint64_t(head) * uint64_t(head_dim) + uint64_t(4u * within);
  float v[4];
  float sum = 0.0;
  for (uint i = 0u; i < 4u; ++i) {
    v[i] = there ? Floats(uint64_t(x) + 4ul * at).v[i] : 0.0;
    sum = fused(v[i], v[i], sum);
  }
  lanes[thread] = sum;
  barrier();
  for (uint half_count = kLanes / 2u; half_count > 0u; half_count /= 2u) {
    if (thread % kLanes < half_count) {
      precise float both = lanes[thread] + lanes[thread + half_count];
      lanes[thread] = both;
    }
    barrier();
  }
  float trees[4];
  for (uint i = 0u; i < 4u; ++i)
    trees[i] = i < kHeadThreads / kLanes ? lanes[thread / kHeadThreads * kHeadThreads + i * kLanes] : 0.0;
  precise float low = trees[0] + trees[1];
  precise float high = trees[2] + trees[3];
  precise float squares = low + high;
  precise float mean = divide(squares, float(head_dim)) + eps;
  float scale = divide(1.0, square_root(mean));
  float four[4];
  for (uint i = 0u; i < 4u; ++i) {
    precise float y = v[i] * scale;
    y = y * (there ? Floats(weight.v[0]).v[4u * within + i] : 0.0);
    four[i] = gated(kActivation, there ? Floats(uint64_t(gate) + 4ul * at).v[i] : 0.0, y);
  }
  if (there && uint64_t(to) != 0ul)
    for (uint i = 0u; i < 4u; ++i) Floats(uint64_t(to) + 4ul * at).v[i] = four[i];
  if (uint64_t(q) != 0ul) put_words(there, four, q, scales, uint(at / 4ul));
}

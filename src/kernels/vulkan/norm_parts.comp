#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
// Equal parts of rows, in place, each by its own mean of squares and weights: kernels/gpu/heads.h, rms_norm_groups().
// A workgroup a part.
const uint kThreads = 256u, kLanes = 32u;
layout(local_size_x = 256) in;
layout(push_constant) uniform Arguments {
  Floats x;
  Addresses weight;
  uint parts, dim;
  float eps;
};

shared float lanes[kThreads];

void main() {
  uint thread = gl_LocalInvocationID.x, number = gl_WorkGroupID.y * parts + gl_WorkGroupID.x;
  Floats part = Floats(uint64_t(x) + 4ul * uint64_t(number) * uint64_t(dim));
  Floats by = Floats(weight.v[0] + 4ul * uint64_t(gl_WorkGroupID.x) * uint64_t(dim));
  float squares = 0.0;
  for (uint i = thread; i < dim; i += kThreads) squares = fused(part.v[i], part.v[i], squares);
  lanes[thread] = squares;
  barrier();
  for (uint half_count = kLanes / 2u; half_count > 0u; half_count /= 2u) {
    if (thread % kLanes < half_count) {
      precise float both = lanes[thread] + lanes[thread + half_count];
      lanes[thread] = both;
    }
    barrier();
  }
  precise float sum = 0.0;
  for (uint i = 0u; i < kThreads; i += kLanes) sum = sum + lanes[i];
  precise float mean = divide(sum, float(dim)) + eps;
  float scale = divide(1.0, square_root(mean));
  for (uint i = thread; i < dim; i += kThreads) {
    precise float y = part.v[i] * scale;
    y = y * by.v[i];
    part.v[i] = y;
  }
}

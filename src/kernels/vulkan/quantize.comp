#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "quantize.glsl"
// Rows of activations to int8: a thread a block of 32.
layout(local_size_x = 64) in;
layout(push_constant) uniform Arguments {
  Floats x;
  Words q, scales;
  uint64_t x_stride;
  uint row_blocks;
};

void main() {
  uint b = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
  if (b >= row_blocks) return;
  Floats from = Floats(uint64_t(x) + 4ul * (uint64_t(r) * x_stride + uint64_t(32u * b)));
  float block[32];
  for (uint i = 0u; i < 32u; ++i) block[i] = from.v[i];
  put_block(block, q, scales, r * row_blocks + b);
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
// Rows times a learned number, and then a learned vector: kernels/gpu/gates.h, scale_by().
layout(local_size_x = 64) in;
layout(push_constant) uniform Arguments {
  Floats x;
  Addresses scalar, bias;
  uint rows, cols;
};

void main() {
  float factor = Floats(scalar.v[0]).v[0];
  for (uint r = gl_WorkGroupID.y; r < rows; r += gl_NumWorkGroups.y)
    for (uint i = gl_GlobalInvocationID.x; i < cols; i += gl_NumWorkGroups.x * 64u) {
      Floats at = Floats(uint64_t(x) + 4ul * (uint64_t(r) * uint64_t(cols) + uint64_t(i)));
      precise float y = at.v[0] * factor;
      if (uint64_t(bias) != 0ul) y = y + Floats(bias.v[0]).v[i];
      at.v[0] = y;
    }
}

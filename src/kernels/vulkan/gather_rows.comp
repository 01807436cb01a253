#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
// out[r] = x[index[r]]
layout(local_size_x = 64) in;
layout(push_constant) uniform Arguments {
  Words x;
  Ints index;
  Words to;
  uint cols;
};

void main() {
  uint r = gl_WorkGroupID.y;
  uint64_t from = uint64_t(uint(index.v[r])) * uint64_t(cols), at = uint64_t(r) * uint64_t(cols);
  for (uint i = gl_GlobalInvocationID.x; i < cols; i += gl_NumWorkGroups.x * 64u)
    Words(uint64_t(to) + 4ul * at).v[i] = Words(uint64_t(x) + 4ul * from).v[i];
}

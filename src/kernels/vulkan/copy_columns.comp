#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
// Channels of heads from one matrix to another, a thread an element: `width` columns of each of `heads` equal parts of
// rows, with zeros behind the first `cols`. kernels/gpu/heads.h, PickCall; kernels/gpu/gates.h, PlaceCall.
layout(local_size_x = 64) in;
layout(push_constant) uniform Arguments {
  Words x, to;
  uint64_t x_stride, to_stride;  // of rows
  uint x_part, to_part, x_first, to_first;
  uint rows, heads, width, cols;
};

void main() {
  for (uint r = gl_WorkGroupID.y; r < rows; r += gl_NumWorkGroups.y)
    for (uint i = gl_GlobalInvocationID.x; i < heads * width; i += gl_NumWorkGroups.x * 64u) {
      uint head = i / width, c = i % width;
      uint64_t from = uint64_t(r) * x_stride + uint64_t(head * x_part + x_first + c);
      uint64_t at = uint64_t(r) * to_stride + uint64_t(head * to_part + to_first + c);
      Words(uint64_t(to) + 4ul * at).v[0] = c < cols ? Words(uint64_t(x) + 4ul * from).v[0] : 0u;
    }
}

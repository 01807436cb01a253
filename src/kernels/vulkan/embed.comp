#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "weights.glsl"
// out[r] = row tokens[r] of the table, decoded: a thread for 32 elements, or for one of floats.
layout(local_size_x = 64) in;
layout(push_constant) uniform Arguments {
  Addresses table;
  Ints tokens;
  Floats to;
  uint rows, cols;
};

void main() {
  uint i = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
  uint64_t row = table.v[0] + uint64_t(uint(tokens.v[r])) * row_bytes(cols);
#if FLOATS
  if (i < cols) to.v[r * cols + i] = weight_at(row, i);
#else
  if (i >= cols / 32u) return;
  Group group = group_at(row, i);
  for (uint j = 0u; j < 32u; ++j) {
    uint h = HALVES == 1 ? j / 16u : 0u;
    int q = int(group.q[j / 4u] << (24u - 8u * (j % 4u))) >> 24;
    precise float x = group.scale[h] * float(q);
#if MINS
    x = x - group.min[h];
#endif
    to.v[r * cols + 32u * i + j] = x;
  }
#endif
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
// activation(x) of entries' rows, in place or as int8: kernels/gpu/heads.h, ActivateEntriesCall. A thread has four
// neighbours, a workgroup a part of a row.
const uint kThreads = 128u;
layout(local_size_x = 128) in;
layout(constant_id = 1) const uint kActivation = 0;
#define TOGETHER
#include "quantize.glsl"
layout(push_constant) uniform Arguments {
  Floats x;
  Words q, scales;
  Ints sorted, expert_first;
  uint cols, experts;
};

void main() {
  uint entry = gl_WorkGroupID.y, column = 4u * gl_GlobalInvocationID.x;
  if (uint64_t(sorted) != 0ul) {
    uint place = uint(expert_first.v[0]) + entry;
    if (place >= uint(expert_first.v[experts])) return;  // the same in all threads
    entry = uint(sorted.v[place]);
  }
  Floats row = Floats(uint64_t(x) + 4ul * uint64_t(entry) * uint64_t(cols));
  float four[4];
  for (uint i = 0u; i < 4u; ++i) four[i] = column + i < cols ? gated(kActivation, row.v[column + i], 1.0) : 0.0;
  if (uint64_t(q) != 0ul) {
    put_words(column < cols, four, q, scales, entry * (cols / 4u) + column / 4u);
    return;
  }
  for (uint i = 0u; i < 4u; ++i)
    if (column + i < cols) row.v[column + i] = four[i];
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
// x / (1 + e^-gate) of whole blocks of 32, and its int8 form: kernels/gpu/heads.h, SigmoidGateCall. A thread has four
// neighbours.
const uint kThreads = 128u;
layout(local_size_x = 128) in;
#define TOGETHER
#include "quantize.glsl"
layout(push_constant) uniform Arguments {
  Floats x, gate, to;
  Words q, scales;
  uint words;  // fours
};

void main() {
  for (uint first = gl_WorkGroupID.x * kThreads; first < words; first += gl_NumWorkGroups.x * kThreads) {
    uint word = first + gl_LocalInvocationID.x;
    bool there = word < words;
    uint64_t at = 16ul * uint64_t(there ? word : 0u);
    float four[4];
    for (uint i = 0u; i < 4u; ++i) four[i] = over_sigmoid(Floats(uint64_t(x) + at).v[i], Floats(uint64_t(gate) + at).v[i]);
    if (there && uint64_t(to) != 0ul)
      for (uint i = 0u; i < 4u; ++i) Floats(uint64_t(to) + at).v[i] = four[i];
    if (uint64_t(q) != 0ul) put_words(there, four, q, scales, word);
  }
}

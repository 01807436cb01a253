#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
// What a row's experts gave, by their weights in ascending places, and what an expert beside them gave: a thread a
// column. kernels/gpu/heads.h, CombineCall.
layout(local_size_x = 64) in;
layout(push_constant) uniform Arguments {
  Floats expert_out, weights, shared_out, shared_gate, y;
  uint64_t shared_stride;
  uint top_k, places, cols, residual;
};

void main() {
  uint i = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
  if (i >= cols) return;
  precise float acc = 0.0;
  for (uint k = 0u; k < top_k; ++k) {
    uint64_t at = (uint64_t(row) * uint64_t(places) + uint64_t(k)) * uint64_t(cols) + uint64_t(i);
    acc = fused(weights.v[row * top_k + k], Floats(uint64_t(expert_out) + 4ul * at).v[0], acc);
  }
  if (uint64_t(shared_out) != 0ul) {
    float by = uint64_t(shared_gate) == 0ul ? 1.0 : over_sigmoid(1.0, shared_gate.v[row]);
    precise float term = Floats(uint64_t(shared_out) + 4ul * uint64_t(row) * shared_stride).v[i] * by;
    acc = acc + term;
  }
  Floats to = Floats(uint64_t(y) + 4ul * (uint64_t(row) * uint64_t(cols) + uint64_t(i)));
  if (residual != 0u) acc = to.v[0] + acc;
  to.v[0] = acc;
}

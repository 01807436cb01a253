#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
#include "softplus.glsl"
// step = ln(1 + e^(step + bias)), decay = e^(a * step), a thread an element: kernels/gpu/heads.h, time_step().
layout(local_size_x = 64) in;
layout(push_constant) uniform Arguments {
  Floats decay, step;  // maybe the same
  Addresses a, bias;
  uint elements, cols;
};

void main() {
  for (uint i = gl_GlobalInvocationID.x; i < elements; i += gl_NumWorkGroups.x * 64u) {
    precise float moved = step.v[i] + Floats(bias.v[0]).v[i % cols];
    float value = softplus(moved);
    step.v[i] = value;
    precise float power = Floats(a.v[0]).v[i % cols] * value;
    decay.v[i] = exp_f32(power);
  }
}

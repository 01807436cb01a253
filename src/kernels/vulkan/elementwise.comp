#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
// Element by element: rows of x and y, y_stride floats apart.
layout(local_size_x = 64) in;
layout(constant_id = 1) const uint kOperation = 0;
layout(constant_id = 2) const uint kActivation = 0;
layout(push_constant) uniform Arguments {
  Floats x, y;
  uint64_t x_stride, y_stride;
  uint rows, cols;
  float factor;
};
const uint kSum = 0u, kGate = 1u, kScale = 2u, kAddScaled = 3u, kProduct = 4u;
const uint kOverSigmoid = 5u, kSigmoidOfRow = 6u, kActivate = 7u, kCap = 8u;

/// cap * tanh(x / cap)
float capped(float x, float cap) {
  precise float y = divide(x, cap);
  y = y + y;
  precise float below = 1.0 + exp_f32(y);
  precise float twice = divide(2.0, below);
  precise float tangent = 1.0 - twice;
  precise float result = cap * tangent;
  return result;
}

void main() {
  for (uint r = gl_WorkGroupID.y; r < rows; r += gl_NumWorkGroups.y) {
    Floats to = Floats(uint64_t(x) + 4ul * uint64_t(r) * x_stride);
    Floats from = Floats(uint64_t(y) + 4ul * uint64_t(r) * y_stride);
    for (uint i = gl_GlobalInvocationID.x; i < cols; i += gl_NumWorkGroups.x * 64u) {
      float a = to.v[i];
      precise float result = a;
      if (kOperation == kSum) result = a + from.v[i];
      if (kOperation == kGate) result = gated(kActivation, a, from.v[i]);
      if (kOperation == kScale) result = a * factor;
      if (kOperation == kAddScaled) result = fused(factor, from.v[i], a);
      if (kOperation == kProduct) result = a * from.v[i];
      if (kOperation == kOverSigmoid) result = over_sigmoid(a, from.v[i]);
      if (kOperation == kSigmoidOfRow) result = a * over_sigmoid(1.0, from.v[0]);
      if (kOperation == kActivate) result = gated(kActivation, a, 1.0);
      if (kOperation == kCap) result = capped(a, factor);
      to.v[i] = result;
    }
  }
}

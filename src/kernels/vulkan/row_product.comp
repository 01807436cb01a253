#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
// product.comp for one row of x, by row_products.glsl: a workgroup has kRows rows of weights.
layout(push_constant) uniform Arguments {
  Addresses weight, up, bias, up_bias;
  Floats x;
  Words q, scales;
  Floats y;
  Words y_q, y_scales;
  uint rows, cols, x_rows, x_stride, y_stride, effect, activation;
};
const uint kAdd = 1u, kGated = 2u;  // Effect

#include "row_products.glsl"
#define TOGETHER
#include "quantize.glsl"

shared float results[kRows];
shared float others[kRows];

float with_bias(float result, Addresses entry, uint n) {
  if (uint64_t(entry) == 0ul || n >= rows) return result;
  precise float sum = result + Floats(entry.v[0]).v[n];
  return sum;
}

void main() {
  uint first = gl_WorkGroupID.x * kRows;
  take_x(0u);
  MULTIPLY_ROWS(weight.v[0], first, results)
  if (effect == kGated) {
    MULTIPLY_ROWS(up.v[0], first, others)
  }
  barrier();
  for (uint r = gl_LocalInvocationID.x; r < kRows && first + r < rows; r += kThreads) {
    uint n = first + r;
    float result = with_bias(results[r], bias, n);
    if (effect == kGated) result = gated(activation, result, with_bias(others[r], up_bias, n));
    if (uint64_t(y) != 0ul) {
      if (effect == kAdd) {
        precise float sum = y.v[n] + result;
        result = sum;
      }
      y.v[n] = result;
    }
    results[r] = result;
  }
  if (uint64_t(y_q) == 0ul) return;  // the same in all threads
  barrier();
  for (uint base = 0u; base < kRows / 4u; base += kThreads) {
    uint word = base + gl_LocalInvocationID.x;
    bool there = word < kRows / 4u;
    float four[4];
    for (uint i = 0u; i < 4u; ++i) four[i] = there ? results[4u * word + i] : 0.0;
    put_words(there, four, y_q, y_scales, first / 4u + word);
  }
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
#include "quantize.glsl"
#include "weights.glsl"
// y (+)= x w^T (+ bias), or gated(x w^T, x up^T): a workgroup has 32 rows of weights and up to four of x.
const uint kTile = 4u;
layout(local_size_x = 256) in;
layout(push_constant) uniform Arguments {
  Addresses weight, up, bias, up_bias;
  Floats x;
  Words q, scales;
  Floats y;
  Words y_q, y_scales;
  uint rows, cols, x_rows, x_stride, y_stride, effect, activation;
};
const uint kAdd = 1u, kGated = 2u;  // Effect

#include "products.glsl"

shared float results[kTile][kRows];

float with_bias(float result, Addresses entry, uint n) {
  if (uint64_t(entry) == 0ul || n >= rows) return result;
  precise float sum = result + Floats(entry.v[0]).v[n];
  return sum;
}

void main() {
  uint row = gl_LocalInvocationID.x / kTeam, t = gl_LocalInvocationID.x % kTeam;
  uint n = gl_WorkGroupID.x * kRows + row, first_x = gl_WorkGroupID.y * kTile, tile = min(kTile, x_rows - first_x);
  float result = with_bias(product(weight.v[0], n, first_x, tile), bias, n);
  if (effect == kGated) {
    float other = with_bias(product(up.v[0], n, first_x, tile), up_bias, n);
    if (t < kTile) result = gated(activation, result, other);
  }
  if (t < tile && n < rows && uint64_t(y) != 0ul) {
    Floats to = Floats(uint64_t(y) + 4ul * (uint64_t(first_x + t) * uint64_t(y_stride) + uint64_t(n)));
    if (effect == kAdd) {
      precise float sum = to.v[0] + result;
      result = sum;
    }
    to.v[0] = result;
  }
  if (uint64_t(y_q) == 0ul) return;  // the same in all threads
  if (t < kTile) results[t][row] = result;
  barrier();
  uint r = gl_LocalInvocationID.x;
  if (r >= tile) return;
  float block[32];
  for (uint i = 0u; i < kRows; ++i) block[i] = results[r][i];
  put_block(block, y_q, y_scales, (first_x + r) * (rows / 32u) + gl_WorkGroupID.x);
}

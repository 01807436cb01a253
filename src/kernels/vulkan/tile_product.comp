#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
#include "quantize.glsl"
#include "weights.glsl"
#include "packed_dots.glsl"
// product.comp for many rows of x: a workgroup has 64 rows of weights and 16 * kOfX of x, a thread four by kOfX of them.
// Four groups of 32 elements at a time are decoded to shared memory once for all; sums keep the order of products.glsl.
layout(local_size_x = 256) in;
layout(constant_id = 1) const uint kOfX = 4u;  // at most 4
layout(push_constant) uniform Arguments {
  Addresses weight, up, bias, up_bias;
  Floats x;
  Words q, scales;
  Floats y;
  Words y_q, y_scales;
  uint rows, cols, x_rows, x_stride, y_stride, effect, activation;
};
const uint kAdd = 1u, kGated = 2u;  // Effect
const uint kThreads = 256u, kRows = 64u, kSide = 16u, kGroups = 4u, kSegmentGroups = 8u;

// Per group, by rows: 16 integers, the other 16, scales and mins; then the same of x, its scale last.
const uint kX = 3u * kGroups * kRows;
shared uvec4 pool[2u * kX];
uint place(uint from, uint group, uint part, uint row) { return from + (3u * group + part) * kRows + row; }

/// totals[4 i + j]: row side + 16 i of a matrix with row other + 16 j of x.
void multiply(uint64_t matrix, uint first, uint first_x, out float totals[16]) {
  uint thread = gl_LocalInvocationID.x, side = thread % kSide, other = thread / kSide, groups = cols / 32u;
  float acc[16];
  [[unroll]] for (uint i = 0u; i < 16u; ++i) totals[i] = acc[i] = 0.0;
  for (uint base = 0u; base < groups; base += kGroups) {
    uint count = min(kGroups, groups - base), group = thread / kRows, row = thread % kRows;
    barrier();  // of what the last step reads
    if (group < count && first + row < rows) {
      Group got = group_at(matrix + uint64_t(first + row) * row_bytes(cols), base + group);
      pool[place(0u, group, 0u, row)] = uvec4(got.q[0], got.q[1], got.q[2], got.q[3]);
      pool[place(0u, group, 1u, row)] = uvec4(got.q[4], got.q[5], got.q[6], got.q[7]);
      pool[place(0u, group, 2u, row)] =
          floatBitsToUint(vec4(got.scale[0], got.scale[1], got.min[0], got.min[1]));
    }
    if (group < count && row < kSide * kOfX && first_x + row < x_rows) {
      uint block = (first_x + row) * groups + base + group;
      pool[place(kX, group, 0u, row)] = Fours(uint64_t(q)).v[2u * block];
      pool[place(kX, group, 1u, row)] = Fours(uint64_t(q)).v[2u * block + 1u];
      pool[place(kX, group, 2u, row)] = Fours(uint64_t(scales)).v[block];
    }
    barrier();
    for (uint g = 0u; g < count; ++g) {
      uvec4 of_x[4][2], x_scales[4];
      [[unroll]] for (uint j = 0u; j < kOfX; ++j) {
        of_x[j][0] = pool[place(kX, g, 0u, other + kSide * j)];
        of_x[j][1] = pool[place(kX, g, 1u, other + kSide * j)];
        x_scales[j] = pool[place(kX, g, 2u, other + kSide * j)];
      }
      [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uvec4 weights[2] = {pool[place(0u, g, 0u, side + kSide * i)], pool[place(0u, g, 1u, side + kSide * i)]};
        vec4 of = uintBitsToFloat(pool[place(0u, g, 2u, side + kSide * i)]);
        [[unroll]] for (uint j = 0u; j < kOfX; ++j) add_group(weights, of, of_x[j], x_scales[j], acc[4u * i + j]);
      }
    }
    if ((base + kGroups) % kSegmentGroups == 0u || base + kGroups >= groups) {
      [[unroll]] for (uint i = 0u; i < 16u; ++i) {
        precise float sum = totals[i] + acc[i];
        totals[i] = sum;
        acc[i] = 0.0;
      }
    }
  }
}

float with_bias(float result, Addresses entry, uint n) {
  if (uint64_t(entry) == 0ul) return result;
  precise float sum = result + Floats(entry.v[0]).v[n];
  return sum;
}

void main() {
  uint first = gl_WorkGroupID.y * kRows, first_x = gl_WorkGroupID.x * kSide * kOfX;
  uint thread = gl_LocalInvocationID.x, side = thread % kSide, other = thread / kSide;
  float results[16], others[16];
  multiply(weight.v[0], first, first_x, results);
  if (effect == kGated) multiply(up.v[0], first, first_x, others);
  barrier();
  [[unroll]] for (uint i = 0u; i < 4u; ++i)
    [[unroll]] for (uint j = 0u; j < kOfX; ++j) {
      uint n = first + side + kSide * i, at = first_x + other + kSide * j;
      if (n >= rows || at >= x_rows) continue;
      float result = with_bias(results[4u * i + j], bias, n);
      if (effect == kGated) result = gated(activation, result, with_bias(others[4u * i + j], up_bias, n));
      if (uint64_t(y) != 0ul) {
        Floats to = Floats(uint64_t(y) + 4ul * (uint64_t(at) * uint64_t(y_stride) + uint64_t(n)));
        if (effect == kAdd) {
          precise float sum = to.v[0] + result;
          result = sum;
        }
        to.v[0] = result;
      }
      uint word = (other + kSide * j) * kRows + side + kSide * i;
      pool[word / 4u][word % 4u] = floatBitsToUint(result);
    }
  if (uint64_t(y_q) == 0ul) return;  // the same in all threads
  barrier();
  uint at = thread / 2u, part = thread % 2u;  // blocks of 32 results
  if (at >= kSide * kOfX || first_x + at >= x_rows || first + 32u * part >= rows) return;
  float block[32];
  [[unroll]] for (uint i = 0u; i < 8u; ++i) {
    vec4 four = uintBitsToFloat(pool[(at * kRows + 32u * part) / 4u + i]);
    block[4u * i] = four.x;
    block[4u * i + 1u] = four.y;
    block[4u * i + 2u] = four.z;
    block[4u * i + 3u] = four.w;
  }
  put_block(block, y_q, y_scales, (first_x + at) * (rows / 32u) + first / 32u + part);
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
#include "quantize.glsl"
#include "weights.glsl"
// y (+)= x w^T (+ bias), or gated(x w^T, x up^T), in the order of kernels/gpu/ops.h. A workgroup has 32 rows of weights
// and up to four of x; eight threads share a row of weights, each with every eighth segment of 256 elements, and the
// segments' sums are added in ascending order, those of one row of x by one thread.
const uint kRows = 32u, kTeam = 8u, kTile = 4u, kSegment = 256u;
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

shared float sums[kTile][kRows][kTeam];
shared float results[kTile][kRows];

uint own_row() { return gl_WorkGroupID.x * kRows + gl_LocalInvocationID.x / kTeam; }
uint first_x() { return gl_WorkGroupID.y * kTile; }

int dot_bytes(uint a, uint b) {
  int sum = 0;
  for (uint i = 0u; i < 4u; ++i) sum += (int(a << (24u - 8u * i)) >> 24) * (int(b << (24u - 8u * i)) >> 24);
  return sum;
}

void add_segment(uint64_t row, uint segment, uint tile, inout float acc[kTile]) {
  uint end = min(cols, (segment + 1u) * kSegment);
#if FLOATS
  for (uint k = segment * kSegment; k < end; ++k) {
    float w = weight_at(row, k);
    for (uint r = 0u; r < tile; ++r) acc[r] = fused(w, x.v[(first_x() + r) * x_stride + k], acc[r]);
  }
#else
  for (uint g = segment * (kSegment / 32u); g < end / 32u; ++g) {
    Group group = group_at(row, g);
    for (uint r = 0u; r < tile; ++r) {
      uint block = (first_x() + r) * (cols / 32u) + g;
      float d = uintBitsToFloat(scales.v[4u * block]);
      int dots[2] = {0, 0};
      for (uint w = 0u; w < 8u; ++w) dots[w / 4u] += dot_bytes(group.q[w], q.v[8u * block + w]);
#if HALVES
      uint halves = scales.v[4u * block + 3u];
      for (uint h = 0u; h < 2u; ++h) {
        precise float scale = group.scale[h] * d;
        acc[r] = fused(scale, float(dots[h]), acc[r]);
#if MINS
        int sum = int(halves << (16u - 16u * h)) >> 16;
        precise float of_sum = d * float(sum);
        acc[r] = fused(negative(group.min[h]), of_sum, acc[r]);
#endif
      }
#else
      precise float scale = group.scale[0] * d;
      acc[r] = fused(scale, float(dots[0] + dots[1]), acc[r]);
#if MINS
      acc[r] = fused(negative(group.min[0]), uintBitsToFloat(scales.v[4u * block + 1u]), acc[r]);
#endif
#endif
    }
  }
#endif
}

/// The own row's product with row first_x() + t of x, in the team's thread t < kTile. For the whole workgroup.
float product(uint64_t matrix, Addresses entry_of_bias) {
  uint n = own_row(), row = gl_LocalInvocationID.x / kTeam, t = gl_LocalInvocationID.x % kTeam;
  uint tile = min(kTile, x_rows - first_x()), segments = (cols + kSegment - 1u) / kSegment;
  uint64_t from = matrix + uint64_t(n) * row_bytes(cols);
  float total = 0.0;
  for (uint base = 0u; base < segments; base += kTeam) {
    float acc[kTile] = {0.0, 0.0, 0.0, 0.0};
    if (base + t < segments && n < rows) add_segment(from, base + t, tile, acc);
    for (uint r = 0u; r < kTile; ++r) sums[r][row][t] = acc[r];
    barrier();
    for (uint i = 0u; t < kTile && i < min(kTeam, segments - base); ++i) {
      precise float sum = total + sums[t][row][i];
      total = sum;
    }
    barrier();
  }
  if (uint64_t(entry_of_bias) != 0ul && n < rows) {
    precise float sum = total + Floats(entry_of_bias.v[0]).v[n];
    total = sum;
  }
  return total;
}

void main() {
  uint n = own_row(), row = gl_LocalInvocationID.x / kTeam, t = gl_LocalInvocationID.x % kTeam;
  float result = product(weight.v[0], bias);
  if (effect == kGated) {
    float other = product(up.v[0], up_bias);
    if (t < kTile) result = gated(activation, result, other);
  }
  bool there = t < kTile && n < rows && first_x() + t < x_rows;
  if (there && uint64_t(y) != 0ul) {
    uint64_t at = uint64_t(first_x() + t) * uint64_t(y_stride) + uint64_t(n);
    Floats to = Floats(uint64_t(y) + 4ul * at);
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
  if (r >= kTile || first_x() + r >= x_rows || gl_WorkGroupID.x * kRows >= rows) return;
  float block[32];
  for (uint i = 0u; i < kRows; ++i) block[i] = results[r][i];
  put_block(block, y_q, y_scales, (first_x() + r) * (rows / 32u) + gl_WorkGroupID.x);
}

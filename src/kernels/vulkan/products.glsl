// Products of one input with rows of weights, in the order of kernels/gpu/ops.h, by workgroups of kRows * kTeam threads.
// A team of threads shares a row of weights: each has every eighth segment of 256 elements, and the segments' sums are
// added in ascending order, those of one row of x by one thread. Behind numerics.glsl and weights.glsl; the arguments
// have rows, cols, x, x_stride, q and scales.
const uint kRows = 32u, kTeam = 8u, kSegment = 256u;

shared float sums[kTile][kRows][kTeam];

float negated(float x) { return uintBitsToFloat(floatBitsToUint(x) ^ 0x80000000u); }

int dot_bytes(uint a, uint b) {
  int sum = 0;
  for (uint i = 0u; i < 4u; ++i) sum += (int(a << (24u - 8u * i)) >> 24) * (int(b << (24u - 8u * i)) >> 24);
  return sum;
}

/// acc[r] becomes the segment's sum with row first_x + r of x.
void add_segment(uint64_t row, uint segment, uint first_x, uint tile, inout float acc[kTile]) {
  uint end = min(cols, (segment + 1u) * kSegment);
#if FLOATS
  for (uint k = segment * kSegment; k < end; ++k) {
    float w = weight_at(row, k);
    for (uint r = 0u; r < tile; ++r) acc[r] = fused(w, x.v[(first_x + r) * x_stride + k], acc[r]);
  }
#else
  for (uint g = segment * (kSegment / 32u); g < end / 32u; ++g) {
    Group group = group_at(row, g);
    for (uint r = 0u; r < tile; ++r) {
      uint block = (first_x + r) * (cols / 32u) + g;
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
        acc[r] = fused(negated(group.min[h]), of_sum, acc[r]);
#endif
      }
#else
      precise float scale = group.scale[0] * d;
      acc[r] = fused(scale, float(dots[0] + dots[1]), acc[r]);
#if MINS
      acc[r] = fused(negated(group.min[0]), uintBitsToFloat(scales.v[4u * block + 1u]), acc[r]);
#endif
#endif
    }
  }
#endif
}

/// The product of the team's row n of a matrix with row first_x + t of x, in its thread t < tile. For the whole
/// workgroup.
float product(uint64_t matrix, uint n, uint first_x, uint tile) {
  uint row = gl_LocalInvocationID.x / kTeam, t = gl_LocalInvocationID.x % kTeam;
  uint segments = (cols + kSegment - 1u) / kSegment;
  uint64_t from = matrix + uint64_t(n) * row_bytes(cols);
  float total = 0.0;
  for (uint base = 0u; base < segments; base += kTeam) {
    float acc[kTile];
    for (uint r = 0u; r < kTile; ++r) acc[r] = 0.0;
    if (base + t < segments && n < rows) add_segment(from, base + t, first_x, tile, acc);
    for (uint r = 0u; r < kTile; ++r) sums[r][row][t] = acc[r];
    barrier();
    for (uint i = 0u; t < kTile && i < min(kTeam, segments - base); ++i) {
      precise float sum = total + sums[t][row][i];
      total = sum;
    }
    barrier();
  }
  return total;
}

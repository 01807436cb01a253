// Products of one row of x with rows of weights, for decoding: the order of products.glsl, weights read once in wide
// loads. A workgroup brings the bytes of kLanes neighbouring rows to shared memory, where a thread has a segment of 256
// elements of one of them; x stays in its registers. Before this one stand numerics.glsl, `rows`, `q` and `scales`.
#define STAGED
layout(constant_id = 1) const uint kThreads = 64u;
layout(constant_id = 2) const uint kRows = 32u;     // of a workgroup
layout(constant_id = 3) const uint kSegments = 1u;  // of a row of weights, at most kThreads
layout(local_size_x_id = 1) in;

uint staged_word(uint at);
#include "weights.glsl"
#include "packed_dots.glsl"

const uint kUnit = 16u;                                         // bytes of a load
const uint kSegmentBytes = 8u / kBlockGroups * kBlockBytes;     // a multiple of two
const uint kLanes = kThreads / kSegments;                       // rows of a step
const uint kUnits = (kLanes * kSegments * kSegmentBytes) / kUnit + 2u;  // the first and the last may be in part
const uint kEach = (kUnits + kThreads - 1u) / kThreads;         // of a thread

shared uvec4 staged[kUnits];
shared float sums[kThreads];

uint staged_word(uint at) { return staged[at / 4u][at % 4u]; }

uvec4 own_q[16];      // the thread's segment of x
uvec4 own_scales[8];  // its Q8Scales

void take_x(uint row) {
  uint segment = gl_LocalInvocationID.x % kSegments, at = row * kSegments + segment;
  [[unroll]] for (uint i = 0u; i < 16u; ++i) own_q[i] = Fours(uint64_t(q)).v[16u * at + i];
  [[unroll]] for (uint i = 0u; i < 8u; ++i) own_scales[i] = Fours(uint64_t(scales)).v[8u * at + i];
}

/// The sum of the segment that begins at a byte of the staged ones.
float segment_sum(uint at) {
  float acc = 0.0;
#if DTYPE == 12
  uint unit = at / kUnit;  // blocks of Q4_K are nine units
  uvec4 head = staged[unit];
  float d = half_to_float(head.x & 0xffffu), d_min = half_to_float(head.x >> 16);
  uint sc[2] = {head.y & 0x3f3f3f3fu, (head.w & 0x0f0f0f0fu) | ((head.y >> 2) & 0x30303030u)};
  uint m[2] = {head.z & 0x3f3f3f3fu, ((head.w >> 4) & 0x0f0f0f0fu) | ((head.z >> 2) & 0x30303030u)};
  [[unroll]] for (uint pair = 0u; pair < 4u; ++pair) {
    uvec4 a = staged[unit + 1u + 2u * pair], b = staged[unit + 2u + 2u * pair];
    [[unroll]] for (uint h = 0u; h < 2u; ++h) {
      uint g = 2u * pair + h;
      precise float scale = d * float((sc[g / 4u] >> (8u * (g % 4u))) & 255u);
      precise float least = d_min * float((m[g / 4u] >> (8u * (g % 4u))) & 255u);
      uvec4 weights[2] = {(a >> (4u * h)) & 0x0f0f0f0fu, (b >> (4u * h)) & 0x0f0f0f0fu};
      uvec4 of_x[2] = {own_q[2u * g], own_q[2u * g + 1u]};
      add_group(weights, vec4(scale, scale, least, least), of_x, own_scales[g], acc);
    }
  }
#else
  [[unroll]] for (uint g = 0u; g < 8u; ++g) {
    Group group = group_at(at, g);
    uvec4 weights[2] = {uvec4(group.q[0], group.q[1], group.q[2], group.q[3]),
                        uvec4(group.q[4], group.q[5], group.q[6], group.q[7])};
    uvec4 of_x[2] = {own_q[2u * g], own_q[2u * g + 1u]};
    add_group(weights, vec4(group.scale[0], group.scale[1], group.min[0], group.min[1]), of_x, own_scales[g], acc);
  }
#endif
  return acc;
}

/// The products of kRows rows of a matrix, from first on, with the x that the threads took: result[r] is row first +
/// r's, for all threads once they have passed a barrier. kSegments * 256 columns.
#define MULTIPLY_ROWS(matrix, first, result)                                                                      \
  for (uint base = 0u; base < kRows && first + base < rows; base += kLanes) {                                     \
    uint count = min(min(kLanes, kRows - base), rows - first - base), thread = gl_LocalInvocationID.x;            \
    uint64_t from = matrix + uint64_t(first + base) * uint64_t(kSegments * kSegmentBytes);                        \
    uint skew = uint(from) % kUnit, units = (skew + count * kSegments * kSegmentBytes + kUnit - 1u) / kUnit;      \
    uvec4 held[kEach];                                                                                            \
    [[unroll]] for (uint i = 0u; i < kEach; ++i)                                                                  \
      if (i * kThreads + thread < units) held[i] = Fours(from - uint64_t(skew)).v[i * kThreads + thread];         \
    [[unroll]] for (uint i = 0u; i < kEach; ++i)                                                                  \
      if (i * kThreads + thread < units) staged[i * kThreads + thread] = held[i];                                 \
    barrier();                                                                                                    \
    if (thread < count * kSegments) sums[thread] = segment_sum(skew + thread * kSegmentBytes);                    \
    barrier();                                                                                                    \
    if (thread < count) {                                                                                         \
      float total = 0.0;                                                                                          \
      for (uint i = 0u; i < kSegments; ++i) {                                                                     \
        precise float sum = total + sums[thread * kSegments + i];                                                 \
        total = sum;                                                                                              \
      }                                                                                                           \
      result[base + thread] = total;                                                                              \
    }                                                                                                             \
  }

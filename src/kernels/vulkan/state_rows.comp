#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
#include "states.glsl"
// The gated delta rule, and the selective scan, row by row: kernels/gpu/recurrent.h has both contracts. A workgroup has
// 32 columns (values) of one head's matrix and one sequence, and goes through all its rows with the state in registers:
// eight threads share two columns, each with every eighth four of their keys.
const uint kThreads = 128u, kParts = 8u, kBlockColumns = 32u;
layout(local_size_x = 128) in;
layout(constant_id = 1) const uint kEach = 16;  // keys of a thread, a multiple of four
layout(constant_id = 2) const uint kScans = 0;
layout(push_constant) uniform Arguments {
  Runs runs;
  Ints first_run;
  uint64_t offset;
  Floats x;  // [rows, stride]: queries, keys and values; or values, b and c
  Floats step, decay;  // [rows, heads]
  Addresses skip;
  Floats to;  // [rows, heads * head_dim]
  uint groups, heads, keys, head_dim;  // groups: heads of keys
  uint tiled;
  float scale;
};

shared float sums[2][kParts][kBlockColumns];

uint key_of(uint i, uint part) { return 4u * (kParts * (i / 4u) + part) + i % 4u; }

/// A thread's keys of a vector, zeros behind the last.
void take(uint64_t from, uint part, out float v[kEach]) {
  for (uint i = 0u; i < kEach; ++i) v[i] = key_of(i, part) < keys ? Floats(from).v[key_of(i, part)] : 0.0;
}
/// A thread's sum over its keys of s times v: even ones, odd ones, then both.
float dot_of(float s[kEach], float v[kEach]) {
  float even = 0.0, odd = 0.0;
  for (uint i = 0u; i < kEach; i += 2u) {
    even = fused(s[i], v[i], even);
    odd = fused(s[i + 1u], v[i + 1u], odd);
  }
  precise float sum = even + odd;
  return sum;
}
float tree_of(uint stage, uint column) {
  float s[kParts];
  for (uint p = 0u; p < kParts; ++p) s[p] = sums[stage][p][column];
  precise float a = s[0] + s[4];
  precise float b = s[1] + s[5];
  precise float c = s[2] + s[6];
  precise float d = s[3] + s[7];
  a = a + c;
  b = b + d;
  a = a + b;
  return a;
}
/// The sums of all threads that share two columns. Calls take turns with `stage`, so that one barrier is enough.
void add_parts(uint stage, uint part, uint column, inout float first, inout float second) {
  sums[stage][part][column] = first;
  sums[stage][part][column + 1u] = second;
  barrier();
  first = tree_of(stage, column);
  second = tree_of(stage, column + 1u);
}

void main() {
  uint thread = gl_LocalInvocationID.x, part = thread % kParts, column = thread / kParts * 2u;
  uint head = gl_WorkGroupID.y, sequence = gl_WorkGroupID.z, first_column = gl_WorkGroupID.x * kBlockColumns;
  int at = first_run.v[sequence], end = first_run.v[sequence + 1u];
  if (at == end) return;  // the same in all threads
  uint values = heads * head_dim, value = head * head_dim + first_column, stride = values + 2u * groups * keys;
  uint group = tiled != 0u ? head % groups : head / (heads / groups);
  // Where a row has them: of the delta rule queries, keys, values; of the scan values, b, c.
  uint reads = kScans != 0u ? values + (groups + group) * keys : group * keys;
  uint writes = kScans != 0u ? values + group * keys : (groups + group) * keys;
  uint own_value = (kScans != 0u ? 0u : 2u * groups * keys) + value + column;
  bool there = first_column + column < head_dim;  // of the last block of some heads half the columns are
  uint pitch = head_dim % kBlockColumns == 0u ? kBlockColumns : kBlockColumns / 2u;
  uint64_t mine = offset + 4ul * (uint64_t(value) * uint64_t(keys) + uint64_t(column / pitch * pitch) * uint64_t(keys) +
                                  uint64_t(column % pitch));
  float first[kEach], second[kEach];
  uint64_t before = runs.v[at].before;
  for (uint i = 0u; i < kEach; ++i) {
    uint key = key_of(i, part);
    bool has = before != 0ul && there && key < keys;
    Floats two = Floats(before + mine + 4ul * uint64_t(key * pitch));
    first[i] = has ? two.v[0] : 0.0;
    second[i] = has ? two.v[1] : 0.0;
  }
  float skipped = kScans != 0u ? Floats(skip.v[0]).v[head] : 0.0;
  int row = runs.v[at].first_row, last = runs.v[end - 1].first_row + runs.v[end - 1].rows;
  for (;; ++row) {
    for (; at < end && runs.v[at].first_row + runs.v[at].rows == row; ++at) {  // runs that end before this row
      uint64_t after = runs.v[at].after;
      for (uint i = 0u; i < kEach; ++i) {
        uint key = key_of(i, part);
        if (after == 0ul || !there || key >= keys) continue;
        Floats two = Floats(after + mine + 4ul * uint64_t(key * pitch));
        two.v[0] = first[i];
        two.v[1] = second[i];
      }
    }
    if (row >= last) return;
    uint64_t from = uint64_t(x) + 4ul * uint64_t(row) * uint64_t(stride);
    float written[kEach], read[kEach];
    take(from + 4ul * uint64_t(writes), part, written);
    take(from + 4ul * uint64_t(reads), part, read);
    uint gate = uint(row) * heads + head;
    float kept = decay.v[gate], by = kScans != 0u ? step.v[gate] : over_sigmoid(1.0, step.v[gate]);
    Floats two = Floats(from + 4ul * uint64_t(own_value));
    float values_of[2] = {there ? two.v[0] : 0.0, there ? two.v[1] : 0.0};
    precise float adds[2];
    if (kScans != 0u) {
      for (uint c = 0u; c < 2u; ++c) adds[c] = by * values_of[c];
    } else {
      float sum[2] = {dot_of(first, written), dot_of(second, written)};
      add_parts(0u, part, column, sum[0], sum[1]);
      for (uint c = 0u; c < 2u; ++c) {
        precise float known = kept * sum[c];
        precise float missed = values_of[c] - known;
        adds[c] = by * missed;
      }
    }
    for (uint i = 0u; i < kEach; ++i) {
      precise float a = first[i] * kept;
      precise float b = second[i] * kept;
      first[i] = fused(adds[0], written[i], a);
      second[i] = fused(adds[1], written[i], b);
    }
    float given[2] = {dot_of(first, read), dot_of(second, read)};
    add_parts(1u, part, column, given[0], given[1]);
    // The delta rule has had a barrier between this and the next row's sums; the scan has none.
    if (kScans != 0u) barrier();
    if (part == 0u && there) {
      Floats out_of = Floats(uint64_t(to) + 4ul * (uint64_t(row) * uint64_t(values) + uint64_t(value + column)));
      for (uint c = 0u; c < 2u; ++c) {
        precise float result;
        if (kScans != 0u)
          result = fused(skipped, values_of[c], given[c]);
        else
          result = given[c] * scale;
        out_of.v[c] = result;
      }
    }
  }
}

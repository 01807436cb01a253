#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
// Attention of one head of a row by a workgroup, chunk by chunk of 128 keys in ascending order: kernels/gpu/ops.h has
// the order of sums. KV in f16 is widened and follows the rule of f32. Threads are keys while scores are made, and
// channels while values are summed. Few rows are cut up (kPart): a workgroup a chunk, whose sums lie in `parts`, and then one
// a head that joins them.
const uint kThreads = 128u, kChunk = 128u, kMostHeadDim = 512u;
const uint kWhole = 0u, kChunkAlone = 1u, kJoined = 2u;  // kPart
const uint kPartsAtOnce = 8u;
const uint kAtOnce = 16u;  // loads that are under way together
layout(local_size_x = 128) in;
layout(constant_id = 1) const uint kDType = 0;
#include "kv.glsl"
layout(constant_id = 2) const uint kPart = 0;
#define TOGETHER
#include "quantize.glsl"
layout(push_constant) uniform Arguments {
  Floats q, to;
  Words to_q, to_scales;
  Addresses table;
  Ints sequence, position;
  Addresses sinks;
  Ints seen;
  Floats parts;  // [rows, heads, most_parts, 2 + head_dim]: the largest score, the sum of weights, values
  uint heads_and_kv_heads, head_dim_and_rotation;  // 16 bits each
  uint k_offset, v_offset, head_bytes, max_blocks, window;
  float scale, factor;
  uint most_parts;
};

shared float head[kMostHeadDim];       // the query, at the end the result
shared float values[kMostHeadDim];     // the merged chunks' values
shared float weights[kChunk];          // scores, then weights
shared float reduced[kChunk];
shared int digits[kMostHeadDim];       // the query's integers
shared float units[kMostHeadDim / 32u];
shared int rounded[kChunk];            // weights times scales, as integers
shared int set_sums[32];
shared uint set_most;
shared float total;

#include "rotate.glsl"

const float kDigits = 32512.0;
const uint kLeastRounded = 0x0d800000u;  // 2^-100

int to_digits(float x, float inverse) { return int(floatBitsToUint(fused(x, inverse, kRounding))) - 0x4b400000; }
/// What the integers of factors count whose largest magnitude has these bits, and by what factors are multiplied.
float unit_of(uint most, out float inverse) {
  bool finite = most < 0x7f800000u, some = finite && most >= kLeastRounded;
  inverse = some ? divide(kDigits, uintBitsToFloat(most)) : 0.0;
  return !finite ? kNan : some ? divide(uintBitsToFloat(most), kDigits) : 0.0;
}

void round_query(uint head_dim) {
  for (uint set = gl_LocalInvocationID.x; set < head_dim / 32u; set += kThreads) {
    uint most = 0u;
    for (uint i = 32u * set; i < 32u * set + 32u; ++i) most = max(most, floatBitsToUint(head[i]) & 0x7fffffffu);
    float inverse;
    units[set] = unit_of(most, inverse);
    for (uint i = 32u * set; i < 32u * set + 32u; ++i) digits[i] = inverse > 0.0 ? to_digits(head[i], inverse) : 0;
  }
  barrier();
}

float float_at(uint64_t part, uint element) {
  return kDType == kF32 ? Floats(part).v[element] : half_to_float(uint(Halves(part).v[element]));
}
float set_scale(uint64_t part, bool is_key, uint head_dim, uint set, uint slot) {
  return half_to_float(uint(Halves(part + uint64_t(scale_of(is_key, head_dim, set, slot))).v[0]));
}
/// An integer of the cache.
int level_of(uint64_t part, bool is_key, uint head_dim, uint channel, uint slot) {
  if (kDType == kQ8) return int(uint(Bytes(part).v[element_of(is_key, head_dim, channel, slot)]) << 24) >> 24;
  uint both = uint(Bytes(part).v[nibbles_of(is_key, head_dim, channel, slot)]);
  return int(both << (channel % 32u < 16u ? 28 : 24)) >> 28;
}

float score(uint64_t part, uint head_dim, uint slot) {
  float s = 0.0;
  if (kIntegers) {
    for (uint set = 0u; set < head_dim / 32u; ++set) {
      int sum = 0;
      [[unroll]] for (uint i = 0u; i < 32u; ++i)
        sum += digits[32u * set + i] * level_of(part, true, head_dim, 32u * set + i, slot);
      precise float unit = units[set] * set_scale(part, true, head_dim, set, slot);
      s = fused(float(sum), unit, s);
    }
  } else {
    for (uint first = 0u; first < head_dim; first += kAtOnce) {
      float key[kAtOnce];
      [[unroll]] for (uint i = 0u; i < kAtOnce; ++i) key[i] = float_at(part, element_of(true, head_dim, first + i, slot));
      [[unroll]] for (uint i = 0u; i < kAtOnce; ++i) s = fused(head[first + i], key[i], s);
    }
  }
  precise float scaled = s * scale;
  return scaled;
}

/// The part of a block of the row's sequence that has keys or values of the head.
uint64_t part_of(uint key, uint row, uint kv_head, bool is_key) {
  uint64_t entry = uint64_t(uint(sequence.v[row])) * uint64_t(max_blocks) + uint64_t(key / kBlockTokens);
  return Addresses(uint64_t(table) + 8ul * entry).v[0] + uint64_t(is_key ? k_offset : v_offset) +
         uint64_t(kv_head) * uint64_t(head_bytes);
}

/// The sum over the chunk's lanes in the contract's order, and what the threads' largest is; for all.
float largest(float mine) {
  uint thread = gl_LocalInvocationID.x;
  reduced[thread] = is_nan(mine) ? negative(kInfinity) : mine;
  barrier();
  for (uint step = kThreads / 2u; step > 0u; step /= 2u) {
    if (thread < step) reduced[thread] = max(reduced[thread], reduced[thread + step]);
    barrier();
  }
  float most = reduced[0];
  barrier();
  return most;
}
float sum_of_lanes(uint begin, uint end) {
  uint thread = gl_LocalInvocationID.x;
  if (thread < 32u) {
    precise float sum = 0.0;
    for (uint j = thread; j < kChunk; j += 32u)
      if (j >= begin && j < end) sum = sum + weights[j];
    reduced[thread] = sum;
  }
  barrier();
  if (thread == 0u)
    for (uint half_count = 16u; half_count > 0u; half_count /= 2u)
      for (uint i = 0u; i < half_count; ++i) {
        precise float sum = reduced[i] + reduced[i + half_count];
        reduced[i] = sum;
      }
  barrier();
  float sum = reduced[0];
  barrier();
  return sum;
}

/// A channel of the merged values takes in a chunk's; of a chunk alone it is the chunk's.
void join(uint channel, float acc, float before, float joins) {
  precise float joined = acc * joins;
  values[channel] = kPart == kChunkAlone ? acc : fused(values[channel], before, joined);
}
/// values = fma(values, before, those of the chunk's keys * joins). Keys are [begin, end) of the chunk.
void merge_floats(uint chunk, uint row, uint kv_head, uint head_dim, uint begin, uint end, float before, float joins) {
  for (uint d = gl_LocalInvocationID.x; d < head_dim; d += kThreads) {
    float acc = 0.0;
    for (uint first = begin / kAtOnce * kAtOnce; first < end; first += kAtOnce) {  // of one block of the cache
      uint64_t part = part_of(chunk * kChunk + first, row, kv_head, false);
      uint slot = (chunk * kChunk + first) % kBlockTokens;
      float value[kAtOnce];
      [[unroll]] for (uint i = 0u; i < kAtOnce; ++i)
        value[i] = float_at(part, element_of(false, head_dim, d, slot + i));
      [[unroll]] for (uint i = 0u; i < kAtOnce; ++i)
        if (first + i >= begin && first + i < end) acc = fused(weights[first + i], value[i], acc);
    }
    join(d, acc, before, joins);
  }
}
void merge_integers(uint chunk, uint row, uint kv_head, uint head_dim, uint begin, uint end, float before, float joins) {
  uint j = gl_LocalInvocationID.x, key = chunk * kChunk + j;
  bool there = j >= begin && j < end;
  uint64_t part = there ? part_of(key, row, kv_head, false) : 0ul;
  for (uint set = 0u; set < head_dim / 32u; ++set) {
    if (j < 32u) set_sums[j] = 0;
    if (j == 0u) set_most = 0u;
    barrier();
    precise float product = there ? weights[j] * set_scale(part, false, head_dim, set, key % kBlockTokens) : 0.0;
    float weight = is_nan(product) ? 0.0 : max(product, 0.0);
    if (kDType == kQ4) weight = there && weights[j] != 0.0 ? product : 0.0;  // scales have signs there
    if (there) atomicMax(set_most, floatBitsToUint(weight) & 0x7fffffffu);
    barrier();
    float inverse;
    float unit = unit_of(set_most, inverse);
    rounded[j] = there && inverse > 0.0 ? to_digits(weight, inverse) : 0;
    barrier();
    uint channel = 32u * set + j % 32u;
    int sum = 0;
    uint first = j / 32u * 32u;  // the thread's keys, of one block of the cache; rounded is zero of those not seen
    if (first < end && first + 32u > begin) {
      uint64_t values_at = part_of(chunk * kChunk + first, row, kv_head, false);
      uint slot = (chunk * kChunk + first) % kBlockTokens;
      [[unroll]] for (uint i = 0u; i < 32u; ++i)
        sum += rounded[first + i] * level_of(values_at, false, head_dim, channel, slot + i);
    }
    atomicAdd(set_sums[j % 32u], sum);
    barrier();
    if (j < 32u) {
      precise float acc = float(set_sums[j]) * unit;
      join(channel, acc, before, joins);
    }
    barrier();
  }
}

/// What (M, L) become by a chunk's m and l, and by what factors its and the merged values are multiplied.
void join_sums(float m, float l, inout float most, inout float sum, out float before, out float joins) {
  float now = max(most, m);
  precise float from_most = most - now;
  precise float from_m = m - now;
  before = exp_f32(from_most);
  joins = exp_f32(from_m);
  precise float joined = l * joins;
  sum = fused(sum, before, joined);
  most = now;
}
uint64_t part_at(uint row, uint number, uint heads, uint head_dim, uint part) {
  uint64_t count = (uint64_t(row) * uint64_t(heads) + uint64_t(number)) * uint64_t(most_parts) + uint64_t(part);
  return uint64_t(parts) + 4ul * count * uint64_t(2u + head_dim);
}
/// All chunks of a head, which lie in parts; several loads are under way together.
void join_parts(uint64_t from, uint count, uint head_dim, inout float most, inout float sum) {
  uint64_t step = 4ul * uint64_t(2u + head_dim);
  for (uint base = 0u; base < count; base += kPartsAtOnce) {
    float m[kPartsAtOnce], l[kPartsAtOnce], before[kPartsAtOnce], joins[kPartsAtOnce];
    [[unroll]] for (uint i = 0u; i < kPartsAtOnce; ++i) {
      Floats part = Floats(from + step * uint64_t(min(base + i, count - 1u)));
      m[i] = part.v[0];
      l[i] = part.v[1];
    }
    [[unroll]] for (uint i = 0u; i < kPartsAtOnce; ++i)
      if (base + i < count) join_sums(m[i], l[i], most, sum, before[i], joins[i]);
    for (uint d = gl_LocalInvocationID.x; d < head_dim; d += kThreads) {
      float acc[kPartsAtOnce];
      [[unroll]] for (uint i = 0u; i < kPartsAtOnce; ++i)
        acc[i] = Floats(from + step * uint64_t(min(base + i, count - 1u))).v[2u + d];
      [[unroll]] for (uint i = 0u; i < kPartsAtOnce; ++i)
        if (base + i < count) join(d, acc[i], before[i], joins[i]);
    }
  }
}

void main() {
  uint heads = heads_and_kv_heads & 0xffffu, kv_heads = heads_and_kv_heads >> 16;
  uint head_dim = head_dim_and_rotation & 0xffffu, span = head_dim_and_rotation >> 16;
  uint row = gl_WorkGroupID.y, number = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;
  uint kv_head = number / (heads / kv_heads);
  uint64_t first = (uint64_t(row) * uint64_t(heads) + uint64_t(number)) * uint64_t(head_dim);
  uint at = uint(position.v[row]);
  uint oldest = window > 0u && at + 1u > window ? at + 1u - window : 0u, newest = at;
  if (uint64_t(seen) != 0ul) {
    oldest = uint(seen.v[2u * row]);
    newest = uint(seen.v[2u * row + 1u]);
  }
  uint first_chunk = oldest / kChunk, last_chunk = newest / kChunk;
  if (kPart == kChunkAlone) {
    if (gl_WorkGroupID.z > last_chunk - first_chunk) return;
    first_chunk += gl_WorkGroupID.z;
    last_chunk = first_chunk;
  }
  for (uint i = thread; i < head_dim; i += kThreads) {
    head[i] = Floats(uint64_t(q) + 4ul * first).v[i];
    values[i] = 0.0;
  }
  barrier();
  if (kIntegers && kPart != kJoined) round_query(head_dim);
  bool sink = uint64_t(sinks) != 0ul;
  float most = sink ? Floats(sinks.v[0]).v[number] : negative(kInfinity), sum = sink ? 1.0 : 0.0;
  if (kPart == kJoined)
    join_parts(part_at(row, number, heads, head_dim, 0u), last_chunk - first_chunk + 1u, head_dim, most, sum);
  for (uint chunk = first_chunk; kPart != kJoined && chunk <= last_chunk; ++chunk) {
    uint begin = oldest > chunk * kChunk ? oldest - chunk * kChunk : 0u, end = min(newest + 1u - chunk * kChunk, kChunk);
    bool there = thread >= begin && thread < end;
    uint key = chunk * kChunk + thread;
    float s = there ? score(part_of(key, row, kv_head, true), head_dim, key % kBlockTokens) : negative(kInfinity);
    float m = largest(s);
    precise float below = s - m;
    weights[thread] = there ? exp_f32(below) : 0.0;
    barrier();
    float l = sum_of_lanes(begin, end);
    float before = 0.0, joins = 0.0;
    if (kPart == kChunkAlone) {
      most = m;
      sum = l;
    } else {
      join_sums(m, l, most, sum, before, joins);
    }
    if (kIntegers)
      merge_integers(chunk, row, kv_head, head_dim, begin, end, before, joins);
    else
      merge_floats(chunk, row, kv_head, head_dim, begin, end, before, joins);
    barrier();
  }
  if (kPart == kChunkAlone) {
    Floats part = Floats(part_at(row, number, heads, head_dim, gl_WorkGroupID.z));
    if (thread == 0u) {
      part.v[0] = most;
      part.v[1] = sum;
    }
    for (uint i = thread; i < head_dim; i += kThreads) part.v[2u + i] = values[i];
    return;
  }
  for (uint i = thread; i < head_dim; i += kThreads) head[i] = divide(values[i], sum);
  barrier();
  if (span > 0u) rotate(head_dim, span);
  if (uint64_t(to) != 0ul)
    for (uint i = thread; i < head_dim; i += kThreads) Floats(uint64_t(to) + 4ul * first).v[i] = head[i];
  if (uint64_t(to_q) == 0ul) return;
  bool there = thread < head_dim / 4u;  // at most kThreads
  float four[4];
  for (uint i = 0u; i < 4u; ++i) four[i] = there ? head[4u * thread + i] : 0.0;
  put_words(there, four, to_q, to_scales, uint(first / 4ul) + thread);
}

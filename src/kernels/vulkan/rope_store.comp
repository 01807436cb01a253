#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
// Heads of queries, keys and values on their way: norm, RoPE, rotation, then in place or into the cache. A workgroup a
// head of a row: of q first, then of k, then of v. The squares of a norm are summed by 32 lanes with every 32nd four
// channels, and then by a tree.
const uint kThreads = 64u, kMostHeadDim = 512u;
layout(local_size_x = 64) in;
layout(constant_id = 1) const uint kDType = 0;
#include "kv.glsl"
layout(push_constant) uniform Arguments {
  Floats q, k, v;
  Addresses q_norm, k_norm;
  Floats cos_sin;
  Addresses table;
  Ints sequence, position;
  uint heads_and_kv_heads, head_dim_and_rotation, rotary, flags;  // 16 bits each of the first two
  uint k_offset, v_offset, head_bytes, max_blocks;
  float eps, factor;
};
const uint kNeox = 1u, kNormalizeV = 2u;

shared float head[kMostHeadDim];
shared float lanes[32];
shared float root;

#include "rotate.glsl"

void normalize(uint head_dim, uint64_t weight) {
  uint thread = gl_LocalInvocationID.x;
  if (thread < 32u) {
    float sum = 0.0;
    for (uint first = 4u * thread; first < head_dim; first += 128u)
      for (uint i = first; i < first + 4u; ++i) sum = fused(head[i], head[i], sum);
    lanes[thread] = sum;
  }
  barrier();
  if (thread == 0u) {
    for (uint half_count = 16u; half_count > 0u; half_count /= 2u)
      for (uint i = 0u; i < half_count; ++i) {
        precise float sum = lanes[i] + lanes[i + half_count];
        lanes[i] = sum;
      }
    precise float mean = divide(lanes[0], float(head_dim)) + eps;
    root = divide(1.0, square_root(mean));
  }
  barrier();
  for (uint i = thread; i < head_dim; i += kThreads) {
    precise float y = head[i] * root;
    if (weight != 0ul) y = y * Floats(weight).v[i];
    head[i] = y;
  }
  barrier();
}

void turn(uint row) {
  bool neox = (flags & kNeox) != 0u;
  uint pairs = rotary / 2u, apart = neox ? pairs : 1u;
  Floats angles = Floats(uint64_t(cos_sin) + 4ul * uint64_t(row) * uint64_t(rotary));
  for (uint i = gl_LocalInvocationID.x; i < pairs; i += kThreads) {
    uint at = neox ? i : 2u * i;
    float a = head[at], b = head[at + apart], c = angles.v[2u * i], s = angles.v[2u * i + 1u];
    precise float b_s = b * s;
    precise float b_c = b * c;
    head[at] = fused(a, c, uintBitsToFloat(floatBitsToUint(b_s) ^ 0x80000000u));
    head[at + apart] = fused(a, s, b_c);
  }
  barrier();
}

const float kLargestEncodable = 61901280.0;  // tensor/encode_blocks.h

float encodable(float x) { return is_nan(x) ? 0.0 : clamp(x, -kLargestEncodable, kLargestEncodable); }

/// 32 channels as the encoder of q8_0 rounds them (tensor/codec.h), by one thread.
void store_set(uint64_t part, bool is_key, uint head_dim, uint set, uint slot) {
  float most = 0.0;
  for (uint i = 0u; i < 32u; ++i) most = max(most, abs(encodable(head[32u * set + i])));
  uint scale = float_to_half(min(divide(most, 127.0), 65504.0));
  float stored = half_to_float(scale), inverse = stored != 0.0 ? divide(1.0, stored) : 0.0;
  for (uint i = 0u; i < 32u; ++i) {
    precise float level = encodable(head[32u * set + i]) * inverse;
    level = clamp(level, -127.0, 127.0) + kRounding;
    Bytes(part + uint64_t(element_of(is_key, head_dim, 32u * set + i, slot))).v[0] =
        uint8_t((floatBitsToUint(level) - 0x4b400000u) & 255u);
  }
  Halves(part + uint64_t(scale_of(is_key, head_dim, set, slot))).v[0] = uint16_t(scale);
}

/// 32 channels by the bits of encode_kv_q4 (tensor/kv_codec.h), by one thread: the best of four scales.
void store_nibbles(uint64_t part, bool is_key, uint head_dim, uint set, uint slot) {
  float x[32];
  float most = encodable(head[32u * set]), least = most;
  for (uint i = 0u; i < 32u; ++i) {
    x[i] = encodable(head[32u * set + i]);
    most = max(most, x[i]);
    least = min(least, x[i]);
  }
  float extreme = -least >= most ? least : most, best = 0.0;
  if (extreme == 0.0) extreme = 0.0;  // a zero of one sign
  const float divisors[4] = float[](-8.0, -7.5, -8.5, -9.0);
  uint chosen = 0u;
  int levels[32];
  for (uint c = 0u; c < 4u; ++c) {
    uint scale = float_to_half(clamp(divide(extreme, divisors[c]), -65504.0, 65504.0));
    float stored = half_to_float(scale), inverse = stored != 0.0 ? divide(1.0, stored) : 0.0;
    int tried[32];
    precise float errors[8];
    for (uint four = 0u; four < 8u; ++four) {
      precise float squares[4];
      for (uint i = 0u; i < 4u; ++i) {
        precise float level = x[4u * four + i] * inverse;
        level = clamp(level, -8.0, 7.0) + kRounding;
        tried[4u * four + i] = int(floatBitsToUint(level)) - 0x4b400000;
        precise float reached = stored * float(tried[4u * four + i]);
        precise float missed = x[4u * four + i] - reached;
        squares[i] = missed * missed;
      }
      precise float low = squares[0] + squares[1];
      precise float high = squares[2] + squares[3];
      errors[four] = low + high;
    }
    for (uint apart = 1u; apart < 8u; apart *= 2u)
      for (uint four = 0u; four < 8u; four += 2u * apart) {
        precise float both = errors[four] + errors[four + apart];
        errors[four] = both;
      }
    if (c > 0u && !(errors[0] < best)) continue;
    best = errors[0];
    chosen = scale;
    levels = tried;
  }
  for (uint i = 0u; i < 16u; ++i)
    Bytes(part + uint64_t(nibbles_of(is_key, head_dim, 32u * set + i, slot))).v[0] =
        uint8_t((levels[i] & 15) | (levels[i + 16u] & 15) << 4);
  Halves(part + uint64_t(scale_of(is_key, head_dim, set, slot))).v[0] = uint16_t(chosen);
}

void main() {
  uint heads = heads_and_kv_heads & 0xffffu, kv_heads = heads_and_kv_heads >> 16;
  uint head_dim = head_dim_and_rotation & 0xffffu, span = head_dim_and_rotation >> 16;
  uint row = gl_WorkGroupID.y, number = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;
  bool is_q = number < heads, is_k = !is_q && number < heads + kv_heads;
  uint of_kind = is_q ? number : (number - heads) % max(kv_heads, 1u);
  uint64_t first = (uint64_t(row) * uint64_t(is_q ? heads : kv_heads) + uint64_t(of_kind)) * uint64_t(head_dim);
  Floats from = Floats((is_q ? uint64_t(q) : is_k ? uint64_t(k) : uint64_t(v)) + 4ul * first);
  for (uint i = thread; i < head_dim; i += kThreads) head[i] = from.v[i];
  barrier();
  if (is_q || is_k) {
    Addresses norm = is_q ? q_norm : k_norm;
    if (uint64_t(norm) != 0ul) normalize(head_dim, norm.v[0]);
    if (rotary > 0u) turn(row);
  } else if ((flags & kNormalizeV) != 0u) {
    normalize(head_dim, 0ul);
  }
  if (span > 0u) rotate(head_dim, span);
  if (is_q) {
    for (uint i = thread; i < head_dim; i += kThreads) from.v[i] = head[i];
    return;
  }
  uint at = uint(position.v[row]), slot = at % kBlockTokens;
  uint64_t entry = uint64_t(uint(sequence.v[row])) * uint64_t(max_blocks) + uint64_t(at / kBlockTokens);
  uint64_t block = Addresses(uint64_t(table) + 8ul * entry).v[0];
  uint64_t part = block + uint64_t(is_k ? k_offset : v_offset) + uint64_t(of_kind) * uint64_t(head_bytes);
  if (kIntegers) {
    for (uint set = thread; set < head_dim / 32u; set += kThreads) {
      if (kDType == kQ4)
        store_nibbles(part, is_k, head_dim, set, slot);
      else
        store_set(part, is_k, head_dim, set, slot);
    }
    return;
  }
  for (uint i = thread; i < head_dim; i += kThreads) {
    uint64_t element = uint64_t(element_of(is_k, head_dim, i, slot));
    if (kDType == kF32)
      Floats(part + 4ul * element).v[0] = head[i];
    else
      Halves(part + 2ul * element).v[0] = uint16_t(float_to_half(head[i]));
  }
}

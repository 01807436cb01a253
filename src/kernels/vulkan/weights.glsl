// A row of weights of the type DTYPE (its number in GGUF), 32 elements at a time: tensor/blocks.h has the layouts and
// kernels/gpu/ops.h the terms that products are made of. Includes device/vulkan/numerics.glsl first.
// FLOATS: weights are floats, element by element. HALVES: a scale for 16 elements instead of 32. MINS: there are mins.
#if DTYPE == 0 || DTYPE == 1 || DTYPE == 30
#define FLOATS 1
#else
#define FLOATS 0
#endif
#if DTYPE == 10 || DTYPE == 11 || DTYPE == 14
#define HALVES 1
#else
#define HALVES 0
#endif
#if DTYPE == 3 || DTYPE == 7 || DTYPE == 10 || DTYPE == 12 || DTYPE == 13
#define MINS 1
#else
#define MINS 0
#endif

#if DTYPE == 3 || DTYPE == 7 || DTYPE == 10 || DTYPE == 12 || DTYPE == 13
#define WORDS 1
#else
#define WORDS 0
#endif

// WORDS: blocks of whole words of four bytes. STAGED: weights lie in shared memory (staged_word() has the word of a number), and addresses count its bytes.
#ifdef STAGED
#define Address uint
uint byte_at(uint at) { return (staged_word(at / 4u) >> (8u * (at % 4u))) & 255u; }
uint half_at(uint at) { return (staged_word(at / 4u) >> (8u * (at % 4u))) & 0xffffu; }
uint word_at(uint at) {  // at even addresses
#if WORDS
  return staged_word(at / 4u);
#else
  uint low = staged_word(at / 4u);
  return at % 4u == 0u ? low : low >> 16 | staged_word(at / 4u + 1u) << 16;
#endif
}
#else
#define Address uint64_t
uint byte_at(uint64_t at) { return uint(Bytes(at).v[0]); }
uint half_at(uint64_t at) { return uint(Halves(at).v[0]); }
uint word_at(uint64_t at) {  // at even addresses
#if WORDS
  return Words(at).v[0];
#else
  return half_at(at) | half_at(at + 2ul) << 16;
#endif
}
#endif
/// Each byte x in [0, 127] becomes x - k.
uint less(uint bytes, uint k) { return ((bytes | 0x80808080u) - k * 0x01010101u) ^ 0x80808080u; }
/// The lowest four bits, one in each byte.
uint spread(uint bits) { return ((bits & 15u) * 0x00204081u) & 0x01010101u; }

#if FLOATS
uint64_t row_bytes(uint cols) { return uint64_t(cols) * uint64_t(DTYPE == 0 ? 4 : 2); }
float weight_at(uint64_t row, uint i) {
#if DTYPE == 0
  return Floats(row).v[i];
#elif DTYPE == 1
  return half_to_float(uint(Halves(row).v[i]));
#else
  return uintBitsToFloat(uint(Halves(row).v[i]) << 16);
#endif
}
#else

#if DTYPE == 20 || DTYPE == 23
const int kCodebook[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
#elif DTYPE == 39
const int kCodebook[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
#endif

#if DTYPE == 2 || DTYPE == 20
const uint kBlockBytes = 18u, kBlockGroups = 1u;
#elif DTYPE == 3
const uint kBlockBytes = 20u, kBlockGroups = 1u;
#elif DTYPE == 6
const uint kBlockBytes = 22u, kBlockGroups = 1u;
#elif DTYPE == 7
const uint kBlockBytes = 24u, kBlockGroups = 1u;
#elif DTYPE == 8
const uint kBlockBytes = 34u, kBlockGroups = 1u;
#elif DTYPE == 39
const uint kBlockBytes = 17u, kBlockGroups = 1u;
#elif DTYPE == 10
const uint kBlockBytes = 84u, kBlockGroups = 8u;
#elif DTYPE == 11
const uint kBlockBytes = 110u, kBlockGroups = 8u;
#elif DTYPE == 12
const uint kBlockBytes = 144u, kBlockGroups = 8u;
#elif DTYPE == 13
const uint kBlockBytes = 176u, kBlockGroups = 8u;
#elif DTYPE == 14
const uint kBlockBytes = 210u, kBlockGroups = 8u;
#elif DTYPE == 23
const uint kBlockBytes = 136u, kBlockGroups = 8u;
#endif
uint64_t row_bytes(uint cols) { return uint64_t(cols / (32u * kBlockGroups)) * uint64_t(kBlockBytes); }

/// 32 neighbouring weights: their integers, four a word from the lowest byte on, and the scales and mins of their
/// halves. Without HALVES the first count for all.
struct Group {
  uint q[8];
  float scale[2];
  float min[2];
};

#if DTYPE == 20 || DTYPE == 23 || DTYPE == 39
/// Nibbles from `at` on by the codebook: elements 0 to 15 are the low ones.
void look_up(Address at, inout Group group) {
  for (uint w = 0u; w < 4u; ++w) {
    uint low = 0u, high = 0u;
    for (uint i = 0u; i < 4u; ++i) {
      uint two = byte_at(at + Address(4u * w + i));
      low |= (uint(kCodebook[two & 15u]) & 255u) << (8u * i);
      high |= (uint(kCodebook[two >> 4]) & 255u) << (8u * i);
    }
    group.q[w] = low;
    group.q[w + 4u] = high;
  }
}
#endif

Group group_at(Address row, uint number) {
  Address block = row + Address(number / kBlockGroups) * Address(kBlockBytes);
  uint s = number % kBlockGroups;
  Group group;
  group.scale[0] = group.scale[1] = group.min[0] = group.min[1] = 0.0;
#if DTYPE == 2 || DTYPE == 3 || DTYPE == 6 || DTYPE == 7
  group.scale[0] = half_to_float(half_at(block));
  Address qs = block + Address(kBlockBytes - 16u);
#if MINS
  group.min[0] = -half_to_float(half_at(block + Address(2)));
#endif
#if DTYPE == 6
  uint fifth = word_at(block + Address(2));
#elif DTYPE == 7
  uint fifth = word_at(block + Address(4));
#else
  uint fifth = 0u;
#endif
  for (uint w = 0u; w < 4u; ++w) {
    uint two = word_at(qs + Address(4u * w));
    group.q[w] = (two & 0x0f0f0f0fu) | spread(fifth >> (4u * w)) << 4;
    group.q[w + 4u] = ((two >> 4) & 0x0f0f0f0fu) | spread(fifth >> (16u + 4u * w)) << 4;
  }
#if DTYPE == 2
  for (uint w = 0u; w < 8u; ++w) group.q[w] = less(group.q[w], 8u);
#elif DTYPE == 6
  for (uint w = 0u; w < 8u; ++w) group.q[w] = less(group.q[w], 16u);
#endif
#elif DTYPE == 8
  group.scale[0] = half_to_float(half_at(block));
  for (uint w = 0u; w < 8u; ++w) group.q[w] = word_at(block + Address(2u + 4u * w));
#elif DTYPE == 20
  group.scale[0] = half_to_float(half_at(block));
  look_up(block + Address(2), group);
#elif DTYPE == 39
  uint e = byte_at(block);
  group.scale[0] = uintBitsToFloat(e < 2u ? 0x00200000u << e : (e - 1u) << 23);
  look_up(block + Address(1), group);
#elif DTYPE == 23
  uint low = (byte_at(block + Address(4u + s / 2u)) >> (4u * (s % 2u))) & 15u;
  uint high = (half_at(block + Address(2)) >> (2u * s)) & 3u;
  precise float scale = half_to_float(half_at(block)) * float(int(low | high << 4) - 32);
  group.scale[0] = scale;
  look_up(block + Address(8u + 16u * s), group);
#elif DTYPE == 10
  float d = half_to_float(half_at(block + Address(80))), d_min = half_to_float(half_at(block + Address(82)));
  for (uint h = 0u; h < 2u; ++h) {
    uint packed = byte_at(block + Address(2u * s + h));
    precise float scale = d * float(packed & 15u);
    precise float least = d_min * float(packed >> 4);
    group.scale[h] = scale;
    group.min[h] = least;
  }
  for (uint w = 0u; w < 8u; ++w)
    group.q[w] = (word_at(block + Address(16u + 32u * (s / 4u) + 4u * w)) >> (2u * (s % 4u))) & 0x03030303u;
#elif DTYPE == 11
  float d = half_to_float(half_at(block + Address(108)));
  for (uint h = 0u; h < 2u; ++h) {
    uint i = 2u * s + h, nibbles = byte_at(block + Address(96u + i % 8u));
    uint low = i < 8u ? nibbles & 15u : nibbles >> 4;
    uint high = (byte_at(block + Address(104u + i % 4u)) >> (2u * (i / 4u))) & 3u;
    precise float scale = d * float(int(low | high << 4) - 32);
    group.scale[h] = scale;
  }
  for (uint w = 0u; w < 8u; ++w) {
    uint two = (word_at(block + Address(32u + 32u * (s / 4u) + 4u * w)) >> (2u * (s % 4u))) & 0x03030303u;
    uint third = (word_at(block + Address(4u * w)) >> s) & 0x01010101u;
    group.q[w] = less(two | third << 2, 4u);
  }
#elif DTYPE == 12 || DTYPE == 13
  uint first = byte_at(block + Address(4u + s % 4u)), second = byte_at(block + Address(8u + s % 4u));
  uint sc = first & 63u, m = second & 63u;
  if (s >= 4u) {
    uint packed = byte_at(block + Address(8u + s));
    sc = (packed & 15u) | (first >> 6) << 4;
    m = (packed >> 4) | (second >> 6) << 4;
  }
  precise float scale = half_to_float(half_at(block)) * float(sc);
  precise float least = half_to_float(half_at(block + Address(2))) * float(m);
  group.scale[0] = scale;
  group.min[0] = least;
  Address qs = block + Address(kBlockBytes - 128u + 32u * (s / 2u));
  for (uint w = 0u; w < 8u; ++w) {
    uint q = (word_at(qs + Address(4u * w)) >> (4u * (s % 2u))) & 0x0f0f0f0fu;
#if DTYPE == 13
    q |= ((word_at(block + Address(16u + 4u * w)) >> s) & 0x01010101u) << 4;
#endif
    group.q[w] = q;
  }
#elif DTYPE == 14
  float d = half_to_float(half_at(block + Address(208)));
  uint part = s % 4u, half_block = s / 4u;
  for (uint h = 0u; h < 2u; ++h) {
    int sc = int(byte_at(block + Address(192u + 2u * s + h)) << 24) >> 24;
    precise float scale = d * float(sc);
    group.scale[h] = scale;
  }
  for (uint w = 0u; w < 8u; ++w) {
    uint low = word_at(block + Address(64u * half_block + 32u * (part % 2u) + 4u * w)) >> (4u * (part / 2u));
    uint high = word_at(block + Address(128u + 32u * half_block + 4u * w)) >> (2u * part);
    group.q[w] = less((low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4, 32u);
  }
#endif
  return group;
}
#endif

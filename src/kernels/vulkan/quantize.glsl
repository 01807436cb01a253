// Activations as int8 in blocks of 32, with the bits of the processor's quantize_q8. Behind numerics.glsl.
// A block's Q8Scale (kernels/gpu/ops.h) is four words: d, d * sum, sum, the sums of its halves.

// Magnitudes compare as integers do, and so NaN is the largest of all.
uint most_of(uint most, float x) { return max(most, floatBitsToUint(x) & 0x7fffffffu); }
bool has_scale(uint most) { return most < 0x7f800000u && most >= 0x03800000u; }  // 2^-120
/// Four elements as a word, and their sum.
uint rounded_word(float x[4], bool some, float inverse, out int sum) {
  uint packed = 0u;
  sum = 0;
  for (uint i = 0u; i < 4u; ++i) {
    precise float scaled = some ? x[i] * inverse : 0.0;
    scaled = scaled + kRounding;
    int value = int(floatBitsToUint(scaled)) - 0x4b400000;
    sum += value;
    packed |= (uint(value) & 255u) << (8u * i);
  }
  return packed;
}
void put_scale(uint most, int low, int high, Words scales, uint block) {
  float d = most >= 0x7f800000u ? kNan : has_scale(most) ? divide(uintBitsToFloat(most), 127.0) : 0.0;
  precise float product = d * float(low + high);
  scales.v[4u * block] = floatBitsToUint(d);
  scales.v[4u * block + 1u] = floatBitsToUint(product);
  scales.v[4u * block + 2u] = uint(low + high);
  scales.v[4u * block + 3u] = (uint(low) & 0xffffu) | uint(high) << 16;
}

#ifdef TOGETHER
shared uint word_most[kThreads];
shared int word_sums[kThreads];

/// Blocks by a workgroup of kThreads, a multiple of eight: a thread has the four elements of a word of q, and eight
/// neighbours have a block. All call it; there: whether this thread's block is one.
void put_words(bool there, float x[4], Words q, Words scales, uint word) {
  uint thread = gl_LocalInvocationID.x, first = thread / 8u * 8u, most = 0u;
  for (uint i = 0u; i < 4u; ++i) most = most_of(most, x[i]);
  word_most[thread] = most;
  barrier();
  for (uint i = 0u; i < 8u; ++i) most = max(most, word_most[first + i]);
  bool some = has_scale(most);
  int sum;
  uint packed = rounded_word(x, some, some ? divide(127.0, uintBitsToFloat(most)) : 0.0, sum);
  word_sums[thread] = sum;
  barrier();
  if (!there) return;
  q.v[word] = packed;
  if (thread > first) return;
  int sums[2] = {0, 0};
  for (uint i = 0u; i < 8u; ++i) sums[i / 4u] += word_sums[first + i];
  put_scale(most, sums[0], sums[1], scales, word / 8u);
}
#endif

void put_block(float x[32], Words q, Words scales, uint block) {
  uint most = 0u;
  for (uint i = 0u; i < 32u; ++i) most = most_of(most, x[i]);
  bool some = has_scale(most);
  float inverse = some ? divide(127.0, uintBitsToFloat(most)) : 0.0;
  int sums[2] = {0, 0};
  for (uint w = 0u; w < 8u; ++w) {
    float four[4] = {x[4u * w], x[4u * w + 1u], x[4u * w + 2u], x[4u * w + 3u]};
    int sum;
    q.v[8u * block + w] = rounded_word(four, some, inverse, sum);
    sums[w / 4u] += sum;
  }
  put_scale(most, sums[0], sums[1], scales, block);
}

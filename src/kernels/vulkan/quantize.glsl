// Activations as int8 in blocks of 32, with the bits of the processor's quantize_q8. Behind numerics.glsl.
// A block's Q8Scale (kernels/gpu/ops.h) is four words: d, d * sum, sum, the sums of its halves.

void put_block(float x[32], Words q, Words scales, uint block) {
  uint most = 0u;  // magnitudes compare as integers do, and so NaN is the largest of all
  for (uint i = 0u; i < 32u; ++i) most = max(most, floatBitsToUint(x[i]) & 0x7fffffffu);
  bool finite = most < 0x7f800000u, some = finite && most >= 0x03800000u;  // 2^-120
  float inverse = some ? divide(127.0, uintBitsToFloat(most)) : 0.0;
  int sums[2] = {0, 0};
  for (uint w = 0u; w < 8u; ++w) {
    uint packed = 0u;
    for (uint i = 0u; i < 4u; ++i) {
      precise float scaled = some ? x[4u * w + i] * inverse : 0.0;
      scaled = scaled + kRounding;
      int value = int(floatBitsToUint(scaled)) - 0x4b400000;
      sums[w / 4u] += value;
      packed |= (uint(value) & 255u) << (8u * i);
    }
    q.v[8u * block + w] = packed;
  }
  float d = !finite ? kNan : some ? divide(uintBitsToFloat(most), 127.0) : 0.0;
  precise float product = d * float(sums[0] + sums[1]);
  scales.v[4u * block] = floatBitsToUint(d);
  scales.v[4u * block + 1u] = floatBitsToUint(product);
  scales.v[4u * block + 2u] = uint(sums[0] + sums[1]);
  scales.v[4u * block + 3u] = (uint(sums[0]) & 0xffffu) | uint(sums[1]) << 16;
}

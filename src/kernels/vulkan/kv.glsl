// Where keys and values lie: kernels/gpu/ops.h, KvView. A block of the cache has 64 tokens; keys are channel-major,
// values token-major. Behind numerics.glsl and the constant kDType.
const uint kBlockTokens = 64u;
const uint kF32 = 0u, kF16 = 1u, kQ4 = 2u, kQ8 = 8u;  // DType
const bool kIntegers = kDType == kQ8 || kDType == kQ4;

/// Where an element lies in its head's part of a block.
uint element_of(bool is_key, uint head_dim, uint channel, uint slot) {
  return is_key ? channel * kBlockTokens + slot : slot * head_dim + channel;
}
/// Of q4_0: the byte that has a channel in its low half, and the one 16 channels behind in its high half.
uint nibbles_of(bool is_key, uint head_dim, uint channel, uint slot) {
  uint row = channel / 32u * 16u + channel % 16u;
  return is_key ? row * kBlockTokens + slot : slot * (head_dim / 2u) + row;
}
/// And, of q8_0 and q4_0, the scale of 32 channels, in bytes behind the part's start.
uint scale_of(bool is_key, uint head_dim, uint set, uint slot) {
  return kBlockTokens * head_dim / (kDType == kQ4 ? 2u : 1u) + 2u * (is_key ? set * kBlockTokens + slot : slot * (head_dim / 32u) + set);
}

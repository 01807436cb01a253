// Where keys and values lie: kernels/gpu/ops.h, KvView. A block of the cache has 64 tokens; keys are channel-major,
// values token-major. Behind numerics.glsl.
const uint kBlockTokens = 64u;
const uint kF32 = 0u, kF16 = 1u, kQ8 = 8u;  // DType

/// Where an element lies in its head's part of a block.
uint element_of(bool is_key, uint head_dim, uint channel, uint slot) {
  return is_key ? channel * kBlockTokens + slot : slot * head_dim + channel;
}
/// And, of q8_0, the scale of 32 channels, in bytes behind the part's start.
uint scale_of(bool is_key, uint head_dim, uint set, uint slot) {
  return kBlockTokens * head_dim + 2u * (is_key ? set * kBlockTokens + slot : slot * (head_dim / 32u) + set);
}

// A number that orders as logits do: NaN comes before everything, and both zeros are one. Behind numerics.glsl.
uint order_of(float logit) {
  uint bits = floatBitsToUint(logit);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0u;
  if ((bits & 0x7fffffffu) == 0u) bits = 0u;
  return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

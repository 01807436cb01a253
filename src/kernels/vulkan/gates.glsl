// exp and the gates, operation for operation those of kernels.h and kernels/activation.h. Behind numerics.glsl.

float negative(float x) { return uintBitsToFloat(floatBitsToUint(x) ^ 0x80000000u); }

float exp_f32(float x) {
  if (is_nan(x)) return x;
  x = clamp(x, -104.0, 89.0);
  float shifted = fused(x, uintBitsToFloat(0x3fb8aa3bu), kRounding);
  precise float n = shifted - kRounding;
  uint power = floatBitsToUint(shifted) - floatBitsToUint(kRounding);
  float r = fused(n, uintBitsToFloat(0xbf317218u), x);
  r = fused(n, uintBitsToFloat(0x3102e308u), r);
  float q = fused(r, uintBitsToFloat(0x3ab68885u), uintBitsToFloat(0x3c0905b7u));
  q = fused(r, q, uintBitsToFloat(0x3d2aaa8du));
  q = fused(r, q, uintBitsToFloat(0x3e2aaa6eu));
  q = fused(r, q, 0.5);
  precise float square = r * r;
  precise float p = fused(square, q, r) + 1.0;
  uint first = uint(int(power) >> 1);
  precise float y = p * uintBitsToFloat((first << 23) + (127u << 23));
  y = y * uintBitsToFloat(((power - first) << 23) + (127u << 23));
  return y;
}

/// x / (1 + e^-y)
float over_sigmoid(float x, float y) {
  precise float minus = 0.0 - y;
  precise float below = 1.0 + exp_f32(minus);
  return divide(x, below);
}

const uint kSilu = 0u, kGelu = 1u, kReluSquared = 2u;  // Activation

/// What a gate g and an up u become.
float gated(uint activation, float g, float u) {
  precise float result;
  if (activation == kGelu) {
    precise float cubed = g * g;
    cubed = cubed * g;
    precise float inner = uintBitsToFloat(0x3fcc422au) * fused(uintBitsToFloat(0x3d372713u), cubed, g);
    result = over_sigmoid(g, inner) * u;
  } else if (activation == kReluSquared) {
    float positive = is_nan(g) ? g : max(0.0, g);
    precise float square = positive * positive;
    result = square * u;
  } else {
    result = over_sigmoid(g, g) * u;
  }
  return result;
}

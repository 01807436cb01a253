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

/// 1 - erf(x) where x >= 0.
float erfc_of_positive(float x) {
  float t = divide(1.0, fused(0.3275911, x, 1.0));
  float sum = fused(1.061405429, t, -1.453152027);
  sum = fused(sum, t, 1.421413741);
  sum = fused(sum, t, -0.284496736);
  sum = fused(sum, t, 0.254829592);
  precise float square = x * x;
  precise float minus = 0.0 - square;
  precise float result = sum * t;
  result = result * exp_f32(minus);
  return result;
}

const uint kSilu = 0u, kGelu = 1u, kReluSquared = 2u, kClamped = 3u, kGeluErf = 5u;  // Activation

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
  } else if (activation == kClamped) {
    float bounded = is_nan(g) ? g : min(7.0, g);
    precise float shift = (is_nan(u) ? u : clamp(u, -7.0, 7.0)) + 1.0;
    precise float slope = 1.702 * bounded;
    result = over_sigmoid(bounded, slope) * shift;
  } else if (activation == kGeluErf) {
    precise float size = uintBitsToFloat(0x3f3504f3u) * abs(g);
    precise float half_size = 0.5 * abs(g);
    precise float lost = half_size * erfc_of_positive(size);
    precise float kept = (0.0 > g ? 0.0 : g) - lost;
    result = kept * u;
  } else {
    result = over_sigmoid(g, g) * u;
  }
  return result;
}

// softplus_f32 of kernels/recurrent.h with the processor's bits, which computes in float64. Behind gates.glsl.
#include "doubles.glsl"

/// max(x, 0) + ln(1 + y), y = e^-|x|, by twelve terms of the logarithm's series in y / (2 + y).
float softplus(float x) {
  if (is_nan(x) || x == kInfinity) return x;
  // 1 / (2 n + 1)
  const Double inverse[13] = Double[](
      Double(0x10000000000000ul, 0), Double(0x15555555555555ul, -2), Double(0x1999999999999aul, -3),
      Double(0x12492492492492ul, -3), Double(0x1c71c71c71c71cul, -4), Double(0x1745d1745d1746ul, -4),
      Double(0x13b13b13b13b14ul, -4), Double(0x11111111111111ul, -4), Double(0x1e1e1e1e1e1e1eul, -5),
      Double(0x1af286bca1af28ul, -5), Double(0x18618618618618ul, -5), Double(0x1642c8590b2164ul, -5),
      Double(0x147ae147ae147bul, -5));
  Double y = double_of(exp_f32(negative(abs(x))));
  Double z = over(y, plus(Double(0x10000000000000ul, 1), y)), square = times(z, z), sum = Double(0ul, 0);
  for (int n = 12; n >= 0; --n) sum = plus(times(sum, square), inverse[n]);
  ++z.e;
  return float_of(plus(double_of(x > 0.0 ? x : 0.0), times(z, sum)));
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "doubles.glsl"
// Rows times 1 + scale * ln(floor(position / period) + 1), a workgroup a part of a row: kernels/gpu/gates.h, temper().
layout(local_size_x = 64) in;
layout(push_constant) uniform Arguments {
  Floats x;
  Ints position;
  uint cols, period;
  float scale;
};

shared float factor;

/// Of n < 2^31, within some last places of float64: n is 2^k times 1 to 2, whose logarithm is that of z = (n - 2^k) / (n +
/// 2^k) <= 1 / 3 by the series of 2 atanh(z).
Double logarithm(uint n) {
  const Double ln_2 = Double(0x162e42fefa39eful, -1);
  uint k = uint(findMSB(n)), power = 1u << k;
  Double z = over(double_of(n - power), double_of(n + power)), square = times(z, z), sum = Double(0ul, 0);
  for (int i = 17; i >= 0; --i) sum = plus(times(sum, square), over(double_of(1u), double_of(uint(2 * i + 1))));
  ++z.e;
  return plus(times(double_of(k), ln_2), times(z, sum));
}

void main() {
  uint row = gl_WorkGroupID.x, i = gl_GlobalInvocationID.y * 64u + gl_LocalInvocationID.x;
  if (gl_LocalInvocationID.x == 0u) {
    // A file's scale may lie below 0 by so little that the factor is 1 all the same.
    Double more = scale > 0.0 ? times(double_of(scale), logarithm(uint(position.v[row]) / period + 1u)) : Double(0ul, 0);
    factor = float_of(plus(double_of(1u), more));
  }
  barrier();
  if (i >= cols) return;
  Floats at = Floats(uint64_t(x) + 4ul * (uint64_t(row) * uint64_t(cols) + uint64_t(i)));
  precise float y = at.v[0] * factor;
  at.v[0] = y;
}

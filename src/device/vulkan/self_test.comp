#version 460
#extension GL_GOOGLE_include_directive : require
#include "numerics.glsl"
// One operation over many operands, a thread each: what self_test.cpp compares with the processor.
layout(local_size_x = 64) in;
layout(constant_id = 1) const uint kOperation = 0;
layout(constant_id = 2) const uint kAttempt = 0;  // tells pipelines of one operation and two kinds of fma apart
layout(push_constant) uniform Arguments {
  Floats a, b, c, result;
  uint count;
};

void main() {
  uint i = gl_GlobalInvocationID.x;
  if (i >= count) return;
  float x = a.v[i], y = b.v[i], z = c.v[i];
  precise float r = 0.0;
  if (kOperation == 0u) r = fused(x, y, z);
  if (kOperation == 1u) r = x * y;
  if (kOperation == 2u) r = x + y;
  if (kOperation == 3u) r = x - y;
  if (kOperation == 4u) r = divide(x, y);
  if (kOperation == 5u) r = square_root(abs(x));
  if (kOperation == 6u) r = float(int(floatBitsToUint(x)) >> 6);
  if (kOperation == 7u) {  // a product and a sum, which stay two
    precise float product = x * y;
    r = product + z;
  }
  result.v[i] = r;
}

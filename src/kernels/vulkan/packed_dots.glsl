// Dot products of four signed bytes by one instruction, for devices that have it (Offer::packed_dots), and what a group of
// 32 weights adds to a sum: the order of kernels/gpu/ops.h. Behind numerics.glsl and weights.glsl.
#extension GL_EXT_control_flow_attributes : require
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Fours { uvec4 v[]; };

spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int packed_dot(uint a, uint b, spirv_literal int format);

int dot_four(uvec4 a, uvec4 b) {
  return packed_dot(a.x, b.x, 0) + packed_dot(a.y, b.y, 0) + packed_dot(a.z, b.z, 0) + packed_dot(a.w, b.w, 0);
}
float negated(float x) { return uintBitsToFloat(floatBitsToUint(x) ^ 0x80000000u); }

/// weights: the integers of a group; of: the scales of its halves, then the mins; x: its int8 and their Q8Scale.
void add_group(uvec4 weights[2], vec4 of, uvec4 x[2], uvec4 scales, inout float acc) {
  float d = uintBitsToFloat(scales.x);
  int dots[2] = {dot_four(weights[0], x[0]), dot_four(weights[1], x[1])};
#if HALVES
  [[unroll]] for (uint h = 0u; h < 2u; ++h) {
    precise float scale = of[h] * d;
    acc = fused(scale, float(dots[h]), acc);
#if MINS
    int sum = int(scales.w << (16u - 16u * h)) >> 16;
    precise float of_sum = d * float(sum);
    acc = fused(negated(of[2u + h]), of_sum, acc);
#endif
  }
#else
  precise float scale = of[0] * d;
  acc = fused(scale, float(dots[0] + dots[1]), acc);
#if MINS
  acc = fused(negated(of[2]), uintBitsToFloat(scales.y), acc);
#endif
#endif
}

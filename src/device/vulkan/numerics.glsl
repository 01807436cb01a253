// Operations with the processor's bits on any Vulkan device. The standard promises correct rounding of +, - and *
// alone: fma may be a product and a sum, division and square root may miss by some last places. So these are own ones,
// made of what is promised. Every product, sum and difference is `precise`, or a driver might contract two of them;
// scripts/embed_spirv.py fails the build where one is not.
// Subnormal results are the device's own affair: kernels' contracts (kernels/gpu/ops.h) keep products off them.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_spirv_intrinsics : require

// Float controls of 32-bit floats. Those that a device lacks are taken out of the code before it is compiled there.
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4464], 4459, 32);  // DenormPreserve
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4466], 4461, 32);  // SignedZeroInfNan
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4467], 4462, 32);  // RoundingModeRTE

layout(constant_id = 0) const uint kOwnFma = 1;  // driver.h, Fma

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Ints { int v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 1) buffer Bytes { uint8_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Addresses { uint64_t v[]; };

#define kNan uintBitsToFloat(0x7fc00000u)
#define kInfinity uintBitsToFloat(0x7f800000u)
const float kRounding = 12582912.0;  // 1.5 * 2^23: adding it rounds to an integer

bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
bool is_finite(float x) { return (floatBitsToUint(x) & 0x7fffffffu) < 0x7f800000u; }

/// a + b = sum + error, exactly.
void add_exactly(float a, float b, out float sum, out float error) {
  precise float s = a + b;
  precise float other = s - a;
  precise float first = s - other;
  precise float of_a = a - first;
  precise float of_b = b - other;
  precise float e = of_a + of_b;
  sum = s;
  error = e;
}
/// a = high + low, with twelve bits each.
void cut(float a, out float high, out float low) {
  precise float c = 4097.0 * a;
  precise float d = c - a;
  precise float h = c - d;
  precise float l = a - h;
  high = h;
  low = l;
}
/// fma by products and sums: the product as two floats, and a sum that is rounded to odd before it is rounded.
/// Exact where no part of the product lies below the normal numbers, and none is above 2^115.
/// Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums" (2008).
float fma_of_sums(float a, float b, float c) {
  if (!is_finite(a) || !is_finite(b) || !is_finite(c) || a == 0.0 || b == 0.0) {
    precise float plain = a * b;
    plain = plain + c;
    return plain;
  }
  float a_high, a_low, b_high, b_low;
  cut(a, a_high, a_low);
  cut(b, b_high, b_low);
  precise float high = a * b;
  precise float part = a_high * b_high;
  precise float rest = part - high;
  part = a_high * b_low;
  rest = rest + part;
  part = a_low * b_high;
  rest = rest + part;
  part = a_low * b_low;
  precise float low = rest + part;
  float t_high, t_low, v_high, v_low, odd, lost;
  add_exactly(c, low, t_high, t_low);
  add_exactly(high, t_high, v_high, v_low);
  add_exactly(t_low, v_low, odd, lost);
  if (lost != 0.0 && (floatBitsToUint(odd) & 1u) == 0u)
    odd = uintBitsToFloat(floatBitsToUint(odd) + ((lost > 0.0) == (odd > 0.0) ? 1u : 0xffffffffu));
  precise float result = v_high + odd;
  return result;
}
/// a * b + c, rounded once.
float fused(float a, float b, float c) {
  if (kOwnFma != 0u) return fma_of_sums(a, b, c);
  precise float result = fma(a, b, c);
  return result;
}

float half_to_float(uint h) {
  uint sign = (h & 0x8000u) << 16, magnitude = (h & 0x7fffu) << 13, exponent = magnitude & 0x0f800000u;
  uint result = magnitude + (112u << 23);
  if (exponent == 0x0f800000u) {
    result += 112u << 23;
    if (magnitude != exponent) result |= 0x00400000u;
  }
  if (exponent == 0u) {
    precise float shifted = uintBitsToFloat(magnitude + (113u << 23)) - uintBitsToFloat(113u << 23);
    result = floatBitsToUint(shifted);
  }
  return uintBitsToFloat(result | sign);
}
uint float_to_half(float value) {
  uint bits = floatBitsToUint(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint result = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  if (magnitude < 0x38800000u) {
    precise float beside = uintBitsToFloat(magnitude) + 0.5;
    result = floatBitsToUint(beside) - 0x3f000000u;
  }
  if (magnitude >= 0x477ff000u) result = 0x7c00u;
  if (magnitude > 0x7f800000u) result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  return result | sign;
}

/// a / b to nearest even: mantissas in [1, 2), corrected by remainders, and exponents by integers.
float divide(float a, float b) {
  uint a_bits = floatBitsToUint(a), b_bits = floatBitsToUint(b), sign = (a_bits ^ b_bits) & 0x80000000u;
  int a_exponent = int((a_bits >> 23) & 255u), b_exponent = int((b_bits >> 23) & 255u);
  if (is_nan(a) || is_nan(b)) return kNan;
  bool a_zero = (a_bits & 0x7fffffffu) == 0u, b_zero = (b_bits & 0x7fffffffu) == 0u;
  if (a_exponent == 255) return b_exponent == 255 ? kNan : uintBitsToFloat(sign | 0x7f800000u);
  if (b_exponent == 255) return uintBitsToFloat(sign);
  if (b_zero) return a_zero ? kNan : uintBitsToFloat(sign | 0x7f800000u);
  if (a_zero) return uintBitsToFloat(sign);
  if (a_exponent == 0) {
    int shift = 23 - findMSB(a_bits & 0x7fffffu);
    a_bits = (a_bits & 0x7fffffu) << shift;
    a_exponent = 1 - shift;
  }
  if (b_exponent == 0) {
    int shift = 23 - findMSB(b_bits & 0x7fffffu);
    b_bits = (b_bits & 0x7fffffu) << shift;
    b_exponent = 1 - shift;
  }
  float x = uintBitsToFloat((a_bits & 0x7fffffu) | 0x3f800000u), y = uintBitsToFloat((b_bits & 0x7fffffu) | 0x3f800000u);
  precise float inverse = 1.0 / y;  // within 2.5 last places
  float missed = fused(-y, inverse, 1.0);
  inverse = fused(inverse, missed, inverse);
  precise float quotient = x * inverse;
  quotient = fused(fused(-y, quotient, x), inverse, quotient);
  quotient = fused(fused(-y, quotient, x), inverse, quotient);  // in (0.5, 2), correctly rounded
  uint bits = floatBitsToUint(quotient);
  int exponent = int(bits >> 23) + a_exponent - b_exponent;
  if (exponent >= 255) return uintBitsToFloat(sign | 0x7f800000u);
  if (exponent > 0) return uintBitsToFloat(sign | (bits & 0x7fffffu) | (uint(exponent) << 23));
  int shift = 1 - exponent;  // a subnormal result: the remainder's sign says to which side the rounded quotient errs
  if (shift > 25) return uintBitsToFloat(sign);
  missed = fused(-y, quotient, x);
  uint mantissa = (bits & 0x7fffffu) | 0x800000u;
  uint rest = mantissa & ((1u << shift) - 1u), middle = 1u << (shift - 1), kept = mantissa >> shift;
  if (rest > middle || (rest == middle && (missed > 0.0 || (missed == 0.0 && (kept & 1u) == 1u)))) kept += 1u;
  return uintBitsToFloat(sign | kept);
}

/// The square root of a positive normal number, to nearest even.
float square_root(float x) {
  uint bits = floatBitsToUint(x);
  int exponent = int(bits >> 23) - 127, odd = exponent & 1;
  float m = uintBitsToFloat((bits & 0x7fffffu) | (uint(127 + odd) << 23));  // [1, 4)
  precise float root = sqrt(m);
  precise float half_inverse = 0.5 / root;
  root = fused(fused(-root, root, m), half_inverse, root);
  root = fused(fused(-root, root, m), half_inverse, root);
  return uintBitsToFloat(floatBitsToUint(root) + uint(((exponent - odd) / 2) << 23));
}

// Arithmetic in float64 with the processor's bits, of numbers that are not negative: few GPUs of today have float64. A
// number is a whole one of 53 bits and an exponent. Behind numerics.glsl.
struct Double {
  uint64_t m;  // in [2^52, 2^53), or 0 of zero: m * 2^(e - 52)
  int e;
};

/// m has three bits more, the last of which says whether anything lies behind it. To nearest even.
Double rounded(uint64_t m, int e) {
  uint64_t kept = m >> 3, rest = m & 7ul;
  if (rest > 4ul || (rest == 4ul && (kept & 1ul) != 0ul)) ++kept;
  if (kept >> 53 != 0ul) {
    kept >>= 1;
    ++e;
  }
  return Double(kept, e);
}

Double double_of(uint x) {
  int high = findMSB(x);
  return x == 0u ? Double(0ul, 0) : Double(uint64_t(x) << (52 - high), high);
}

Double double_of(float x) {  // not negative, and finite
  uint bits = floatBitsToUint(x), mantissa = bits & 0x7fffffu;
  int exponent = int(bits >> 23);
  if (bits == 0u) return Double(0ul, 0);
  if (exponent > 0) return Double(uint64_t(mantissa | 0x800000u) << 29, exponent - 127);
  int high = findMSB(mantissa);
  return Double(uint64_t(mantissa) << (52 - high), high - 149);
}

float float_of(Double x) {
  if (x.m == 0ul) return 0.0;
  if (x.e > 127) return kInfinity;
  int shift = 29 + max(0, -126 - x.e);
  if (shift > 54) return 0.0;
  uint64_t kept = x.m >> shift, rest = x.m & ((1ul << shift) - 1ul), middle = 1ul << (shift - 1);
  if (rest > middle || (rest == middle && (kept & 1ul) != 0ul)) ++kept;
  // Rounding up carries into the exponent as it should.
  uint exponent = x.e < -126 ? 0u : uint(x.e + 126);
  return uintBitsToFloat((exponent << 23) + uint(kept));
}

Double times(Double a, Double b) {
  if (a.m == 0ul || b.m == 0ul) return Double(0ul, 0);
  const uint64_t low_word = 0xfffffffful;
  uint64_t a_low = a.m & low_word, a_high = a.m >> 32, b_low = b.m & low_word, b_high = b.m >> 32;
  uint64_t low = a_low * b_low;
  uint64_t middle = a_low * b_high + a_high * b_low + (low >> 32);
  low = (middle << 32) | (low & low_word);
  uint64_t high = a_high * b_high + (middle >> 32);  // of 106 bits those from 64 on
  int more = high >> 41 != 0ul ? 1 : 0;
  int shift = 49 + more;  // leaves 53 bits and three
  uint64_t kept = (high << (64 - shift)) | (low >> shift);
  if ((low & ((1ul << shift) - 1ul)) != 0ul) kept |= 1ul;
  return rounded(kept, a.e + b.e + more);
}

Double plus(Double a, Double b) {
  if (a.m == 0ul) return b;
  if (b.m == 0ul) return a;
  if (a.e < b.e) {
    Double other = a;
    a = b;
    b = other;
  }
  int apart = a.e - b.e;
  uint64_t sum = a.m << 3, added = b.m << 3;
  if (apart > 55) {
    added = 1ul;
  } else {
    uint64_t lost = added & ((1ul << apart) - 1ul);
    added = (added >> apart) | (lost != 0ul ? 1ul : 0ul);
  }
  sum += added;
  if (sum >> 56 != 0ul) {
    sum = (sum >> 1) | (sum & 1ul);
    ++a.e;
  }
  return rounded(sum, a.e);
}

Double over(Double a, Double b) {
  if (a.m == 0ul) return a;
  int e = a.e - b.e;
  uint64_t rest = a.m, quotient = 0ul;
  if (rest < b.m) {
    rest <<= 1;
    --e;
  }
  for (int i = 0; i < 55; ++i) {
    quotient <<= 1;
    if (rest >= b.m) {
      rest -= b.m;
      quotient |= 1ul;
    }
    rest <<= 1;
  }
  return rounded((quotient << 1) | (rest != 0ul ? 1ul : 0ul), e);
}

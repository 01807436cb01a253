#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
#include "logits.glsl"
// A draw from all of a row's logits, by a workgroup: the token that kernels::draw() picks. Weights are whole numbers, so
// their sums have one answer. A thread has a stretch of the row.
const uint kThreads = 256u, kBins = 256u, kLimbBits = 12u, kLimbs = 4u, kCandidateWords = 130u;
layout(local_size_x = 256) in;
layout(push_constant) uniform Arguments {
  Floats logits;
  Words rules;  // DrawRule: temperature, top_p, min_p, padding, point
  Words found;  // Candidates
  Ints drawn;
  uint vocab;
};

shared uint bins[kBins][kLimbs];  // a weight's twelve bits at a time: sums of 768,000 of them fit a word
shared uint64_t sums[kThreads];
shared uint64_t needed;
shared uint digit;

/// floor(y * 2^40), y in [0, 1].
uint64_t to_weight(float y) {
  uint bits = floatBitsToUint(y);
  int shift = int(bits >> 23) - 127 + 17;
  uint64_t mantissa = uint64_t((bits & 0x7fffffu) | 0x800000u);
  if (bits < 0x00800000u || shift <= -24) return 0ul;
  return shift >= 0 ? mantissa << shift : mantissa >> -shift;
}
uint64_t weight_of(float below) { return below >= -28.0 ? to_weight(exp_f32(below)) : 0ul; }
float below_best(float logit, float best) {
  precise float below = logit - best;
  return below;
}

/// The 128 bits of a product, high and low.
void multiply(uint64_t a, uint64_t b, out uint64_t high, out uint64_t low) {
  const uint64_t kLow = 0xfffffffful;
  uint64_t a0 = a & kLow, a1 = a >> 32, b0 = b & kLow, b1 = b >> 32;
  uint64_t p00 = a0 * b0, p01 = a0 * b1, p10 = a1 * b0;
  uint64_t middle = (p00 >> 32) + (p01 & kLow) + (p10 & kLow);
  low = (middle << 32) | (p00 & kLow);
  high = a1 * b1 + (p01 >> 32) + (p10 >> 32) + (middle >> 32);
}
int highest_bit(uint64_t x) {
  uint top = uint(x >> 32);
  return top != 0u ? 32 + findMSB(top) : findMSB(uint(x));
}
/// A number of 53 bits or fewer, and an exponent: x rounded to nearest even, as a conversion to double does it.
uint64_t round_to_53(uint64_t x, out int exponent) {
  exponent = max(highest_bit(x) - 52, 0);
  if (exponent == 0) return x;
  uint64_t kept = x >> exponent, rest = x & ((1ul << exponent) - 1ul), middle = 1ul << (exponent - 1);
  return rest > middle || (rest == middle && (kept & 1ul) == 1ul) ? kept + 1ul : kept;
}
/// ceil(double(share) * double(all)), the product rounded to a double, without doubles: share in [0, 1).
uint64_t share_of(float share, uint64_t all) {
  uint bits = floatBitsToUint(share);
  if (all == 0ul || bits == 0u || (bits >> 31) != 0u) return 0ul;
  uint mantissa = bits >= 0x00800000u ? (bits & 0x7fffffu) | 0x800000u : bits & 0x7fffffu;
  int below = 150 - max(int(bits >> 23), 1);  // share = mantissa / 2^below
  int exponent;
  uint64_t rounded = round_to_53(all, exponent), high, low;
  multiply(rounded, uint64_t(mantissa), high, low);  // of 77 bits at most
  int shift = exponent - below;                      // the product's, to be rounded to 53 bits
  int top = high != 0ul ? 64 + highest_bit(high) : highest_bit(low), drop = top - 52;
  uint64_t kept = low;
  if (drop > 0) {
    kept = (high << (64 - drop)) | (low >> drop);
    uint64_t rest = low & ((1ul << drop) - 1ul), middle = 1ul << (drop - 1);
    if (rest > middle || (rest == middle && (kept & 1ul) == 1ul)) kept += 1ul;
    shift += drop;
  }
  if (shift >= 0) return kept << shift;
  if (shift <= -64) return 1ul;
  uint64_t whole = kept >> -shift;
  return (whole << -shift) == kept ? whole : whole + 1ul;
}

/// The order of the last logit, from the largest on, with which a share of the weight is reached. For the workgroup.
uint boundary(Floats row, float best, float share) {
  uint thread = gl_LocalInvocationID.x, prefix = 0u, known = 0u;
  for (uint step = 0u; step < 4u; ++step) {
    uint shift = 24u - 8u * step;
    for (uint limb = 0u; limb < kLimbs; ++limb) bins[thread][limb] = 0u;
    barrier();
    for (uint id = thread; id < vocab; id += kThreads) {
      uint order = order_of(row.v[id]);
      if ((order & known) != prefix) continue;
      uint64_t mine = weight_of(below_best(row.v[id], best));
      for (uint limb = 0u; limb < kLimbs; ++limb) {
        uint part = uint(mine >> (kLimbBits * limb)) & 0xfffu;
        if (part != 0u) atomicAdd(bins[(order >> shift) & 255u][limb], part);
      }
    }
    barrier();
    uint64_t total = 0ul;
    for (uint limb = 0u; limb < kLimbs; ++limb) total += uint64_t(bins[thread][limb]) << (kLimbBits * limb);
    sums[thread] = total;
    barrier();
    if (thread == 0u) {
      if (step == 0u) {
        uint64_t all = 0ul;
        for (uint i = 0u; i < kBins; ++i) all += sums[i];
        needed = max(share_of(share, all), 1ul);
      }
      uint d = kBins - 1u;
      uint64_t left = needed;
      while (d > 0u && sums[d] < left) left -= sums[d--];
      needed = left;
      digit = d;
    }
    barrier();
    prefix |= digit << shift;
    known |= 255u << shift;
    barrier();
  }
  return prefix;
}

void main() {
  uint r = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;
  Words rule = Words(uint64_t(rules) + 24ul * uint64_t(r));
  float temperature = uintBitsToFloat(rule.v[0]), top_p = uintBitsToFloat(rule.v[1]);
  float min_p = uintBitsToFloat(rule.v[2]);
  if (!(temperature > 0.0)) {
    if (thread == 0u) drawn.v[r] = -1;
    return;
  }
  Floats row = Floats(uint64_t(logits) + 4ul * uint64_t(r) * uint64_t(vocab));
  Words candidates = Words(uint64_t(found) + 4ul * uint64_t(r) * uint64_t(kCandidateWords));
  float best = uintBitsToFloat(candidates.v[0]);
  uint least = top_p < 1.0 ? boundary(row, best, top_p) : 0u;
  uint each = (vocab + kThreads - 1u) / kThreads, first = min(thread * each, vocab), end = min(first + each, vocab);
  uint64_t mine = 0ul;
  for (uint pass = 0u; pass < 2u; ++pass) {  // the first sums up, the second finds the token in its stretch
    uint64_t left = 0ul, total = 0ul;
    if (pass == 1u) {
      for (uint i = 0u; i < kThreads; ++i) total += sums[i];
      uint64_t point = uint64_t(rule.v[4]) | uint64_t(rule.v[5]) << 32, high, low;
      multiply(point, total, high, low);
      left = high << 11 | low >> 53;
      for (uint i = 0u; i < thread; ++i) left = left >= sums[i] ? left - sums[i] : ~0ul;
      if (total == 0ul && thread == 0u) drawn.v[r] = int(candidates.v[64]);
      if (total == 0ul || left >= sums[thread]) return;
    }
    for (uint id = first; id < end; ++id) {
      float below = below_best(row.v[id], best);
      bool kept = order_of(row.v[id]) >= least && (min_p <= 0.0 || exp_f32(below) >= min_p);
      uint64_t weight = kept ? weight_of(divide(below, temperature)) : 0ul;
      if (pass == 0u) {
        mine += weight;
      } else if (left < weight) {
        drawn.v[r] = int(id);
        return;
      } else {
        left -= weight;
      }
    }
    if (pass == 0u) {
      sums[thread] = mine;
      barrier();
    }
  }
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "logits.glsl"
// The 64 largest logits of a row, by a workgroup. A logit's order and the complement of its id are a key of 64 bits, all
// different: eight of its bits at a time, from the top, show which keys are among the largest.
const uint kThreads = 256u, kCandidates = 64u, kBins = 256u;
layout(local_size_x = 256) in;
layout(push_constant) uniform Arguments {
  Floats logits;
  Words to;  // Candidates, of 2 * kCandidates + 2 words
  uint vocab;
};

shared uint bins[kBins];
shared uint chosen_order[kCandidates], chosen_id[kCandidates];
shared uint chosen_count, finite, digit, needed, whole;

/// The eight bits of a key from `shift` on, and whether all above are those of the prefix.
uint digit_of(uint order, uint id, uint shift) { return ((shift >= 32u ? order >> (shift - 32u) : ~id >> shift)) & 255u; }
bool matches(uint order, uint id, uint shift, uint top, uint low) {
  if (shift == 56u) return true;
  if (shift >= 32u) return order >> (shift - 24u) == top >> (shift - 24u);
  if (order != top) return false;
  return shift == 24u || ~id >> (shift + 8u) == low >> (shift + 8u);
}

void main() {
  uint r = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;
  Floats row = Floats(uint64_t(logits) + 4ul * uint64_t(r) * uint64_t(vocab));
  if (thread == 0u) {
    chosen_count = 0u;
    finite = 1u;
    needed = kCandidates;
    whole = 0u;
  }
  barrier();
  for (uint id = thread; id < vocab; id += kThreads)
    if (!is_finite(row.v[id])) atomicAnd(finite, 0u);
  uint top = 0u, low = 0u;  // no key below is among them
  if (vocab > kCandidates) {
    for (uint step = 0u; step < 8u; ++step) {
      uint shift = 56u - 8u * step;
      bins[thread] = 0u;
      barrier();
      for (uint id = thread; id < vocab; id += kThreads) {
        uint order = order_of(row.v[id]);
        if (matches(order, id, shift, top, low)) atomicAdd(bins[digit_of(order, id, shift)], 1u);
      }
      barrier();
      if (thread == 0u) {
        uint d = kBins - 1u, left = needed;
        while (bins[d] < left) left -= bins[d--];
        digit = d;
        needed = left;
        whole = bins[d] == left ? 1u : 0u;
      }
      barrier();
      if (shift >= 32u)
        top |= digit << (shift - 32u);
      else
        low |= digit << shift;
      bool ends = whole != 0u;
      barrier();
      if (ends) break;
    }
  }
  for (uint id = thread; id < vocab; id += kThreads) {
    uint order = order_of(row.v[id]);
    if (order < top || (order == top && ~id < low)) continue;
    uint at = atomicAdd(chosen_count, 1u);
    chosen_order[at] = order;
    chosen_id[at] = id;
  }
  barrier();
  uint count = min(vocab, kCandidates);
  Words result = Words(uint64_t(to) + 4ul * uint64_t(r) * uint64_t(2u * kCandidates + 2u));
  if (thread < count) {
    uint place = 0u, order = chosen_order[thread], id = chosen_id[thread];
    for (uint i = 0u; i < count; ++i)
      if (chosen_order[i] > order || (chosen_order[i] == order && chosen_id[i] < id)) ++place;
    result.v[place] = floatBitsToUint(row.v[id]);
    result.v[kCandidates + place] = id;
  } else if (thread < kCandidates) {
    result.v[thread] = 0xff800000u;
    result.v[kCandidates + thread] = 0xffffffffu;
  }
  if (thread == 0u) {
    result.v[2u * kCandidates] = finite;
    result.v[2u * kCandidates + 1u] = count;
  }
}

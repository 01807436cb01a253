#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "logits.glsl"
// The 64 largest logits of a row, by a workgroup. A logit's order and the complement of its id are a key of 64 bits, all
// different: eight of its bits at a time, from the top, show which keys are among the largest. Long rows are cut into
// pieces, a workgroup each, and a second launch chooses among what those found.
const uint kThreads = 256u, kCandidates = 64u, kBins = 256u, kSet = 16u;  // bins of a set
const uint kWords = 2u * kCandidates + 2u, kNobody = 0xffffffffu;
layout(local_size_x = 256) in;
layout(constant_id = 1) const uint kOfFound = 0;  // 1: among what pieces found
layout(push_constant) uniform Arguments {
  Floats logits;
  Words to;  // Candidates, of kWords words: [rows, pieces], or where kOfFound is set [rows]
  Words found;  // [rows, pieces]
  uint vocab, piece, pieces;  // piece: elements of one
};

shared uint bins[kBins];
shared uint sets[kBins / kSet];
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

/// The id of an element of the row, or of one that pieces found, which may be nobody's.
uint id_of(Words lists, uint i) {
  return kOfFound == 0u ? i : lists.v[i / kCandidates * kWords + kCandidates + i % kCandidates];
}

void main() {
  uint r = gl_WorkGroupID.y, thread = gl_LocalInvocationID.x;
  Floats row = Floats(uint64_t(logits) + 4ul * uint64_t(r) * uint64_t(vocab));
  if (thread == 0u) {
    chosen_count = 0u;
    finite = 1u;
    needed = kCandidates;
    whole = 0u;
  }
  barrier();
  Words lists = Words(uint64_t(found) + 4ul * uint64_t(r) * uint64_t(pieces * kWords));
  uint begin = kOfFound != 0u ? 0u : gl_WorkGroupID.x * piece;
  uint end = kOfFound != 0u ? pieces * kCandidates : min(begin + piece, vocab);
  uint all = kOfFound != 0u ? vocab : end - begin;
  if (kOfFound != 0u) {
    for (uint i = thread; i < pieces; i += kThreads)
      if (lists.v[i * kWords + 2u * kCandidates] == 0u) atomicAnd(finite, 0u);
  } else {
    for (uint id = begin + thread; id < end; id += kThreads)
      if (!is_finite(row.v[id])) atomicAnd(finite, 0u);
  }
  uint top = 0u, low = 0u;  // no key below is among them
  if (all > kCandidates) {
    for (uint step = 0u; step < 8u; ++step) {
      uint shift = 56u - 8u * step;
      bins[thread] = 0u;
      barrier();
      for (uint i = begin + thread; i < end; i += kThreads) {
        uint id = id_of(lists, i);
        if (id == kNobody) continue;
        uint order = order_of(row.v[id]);
        if (matches(order, id, shift, top, low)) atomicAdd(bins[digit_of(order, id, shift)], 1u);
      }
      barrier();
      if (thread < kBins / kSet) {
        uint sum = 0u;
        for (uint i = 0u; i < kSet; ++i) sum += bins[kSet * thread + i];
        sets[thread] = sum;
      }
      uint wanted = needed, above = 0u;  // above: keys of larger digits than this thread's
      barrier();
      for (uint i = thread / kSet + 1u; i < kBins / kSet; ++i) above += sets[i];
      for (uint i = thread + 1u; i % kSet != 0u; ++i) above += bins[i];
      if (above < wanted && above + bins[thread] >= wanted) {  // one thread
        digit = thread;
        needed = wanted - above;
        whole = bins[thread] == wanted - above ? 1u : 0u;
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
  for (uint i = begin + thread; i < end; i += kThreads) {
    uint id = id_of(lists, i);
    if (id == kNobody) continue;
    uint order = order_of(row.v[id]);
    if (order < top || (order == top && ~id < low)) continue;
    uint at = atomicAdd(chosen_count, 1u);
    chosen_order[at] = order;
    chosen_id[at] = id;
  }
  barrier();
  uint count = min(all, kCandidates);
  uint place_of = kOfFound != 0u ? r : r * pieces + gl_WorkGroupID.x;
  Words result = Words(uint64_t(to) + 4ul * uint64_t(place_of) * uint64_t(kWords));
  if (thread < count) {
    uint place = 0u, order = chosen_order[thread], id = chosen_id[thread];
    for (uint i = 0u; i < count; ++i)
      if (chosen_order[i] > order || (chosen_order[i] == order && chosen_id[i] < id)) ++place;
    result.v[place] = floatBitsToUint(row.v[id]);
    result.v[kCandidates + place] = id;
  } else if (thread < kCandidates) {
    result.v[thread] = 0xff800000u;
    result.v[kCandidates + thread] = kNobody;
  }
  if (thread == 0u) {
    result.v[2u * kCandidates] = finite;
    result.v[2u * kCandidates + 1u] = count;
  }
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
// Entries by expert, ascending within one: a workgroup an expert, whose threads have a stretch of the entries each.
const uint kThreads = 64u;
layout(local_size_x = 64) in;
layout(push_constant) uniform Arguments {
  Ints chosen, sorted, expert_first;
  uint entries, experts;
};

shared uint equal_of[kThreads], less_of[kThreads];

void main() {
  uint expert = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;
  uint each = (entries + kThreads - 1u) / kThreads, begin = min(thread * each, entries), end = min(begin + each, entries);
  uint equal = 0u, less = 0u;
  for (uint i = begin; i < end; ++i) {
    uint e = uint(chosen.v[i]);
    equal += e == expert ? 1u : 0u;
    less += e < expert ? 1u : 0u;
  }
  equal_of[thread] = equal;
  less_of[thread] = less;
  barrier();
  uint first = 0u, at = 0u;
  for (uint t = 0u; t < kThreads; ++t) {
    first += less_of[t];
    if (t < thread) at += equal_of[t];
  }
  at += first;
  if (thread == 0u) {
    expert_first.v[expert] = int(first);
    if (expert + 1u == experts) expert_first.v[experts] = int(entries);
  }
  for (uint i = begin; i < end; ++i)
    if (uint(chosen.v[i]) == expert) sorted.v[at++] = int(i);
}

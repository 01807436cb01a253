#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
// The experts of a row by any router: kernels/gpu/gates.h, ChooseCall. A workgroup of 32 lanes a row. Lane l has experts
// l, l + 32, ...
const uint kLanes = 32u, kMostExperts = 1024u, kMostGroups = 64u;
layout(local_size_x = 32) in;
layout(constant_id = 1) const uint kGating = 0;
layout(push_constant) uniform Arguments {
  Floats scores;
  Addresses bias, output_scale, hidden_scale;
  Ints chosen;
  Floats weights;
  uint experts, top_k, groups, groups_used, normalize;
  float scale;
};
const uint kSoftmax = 0u, kSigmoid = 1u, kSoftmaxChosen = 2u;  // Gating
const int kGone = -2147483647 - 1, kNotANumber = kGone + 1;

shared float probability_of[kMostExperts];
shared int key_of[kMostExperts];  // orders as the sum of probability and bias does
shared float lanes[kLanes];
shared int best_of[kLanes];
shared uint place_of[kLanes];
shared float picked[kLanes];
shared int picked_expert[kLanes];
shared int score_of[kMostGroups];

/// Floats in the order of signed integers; -0 as 0, and what is not a number last.
int ordered(float x) {
  if (is_nan(x)) return kNotANumber;
  int bits = floatBitsToInt(x);
  return bits >= 0 ? bits : int(0x80000000u - uint(bits));
}
float biased(uint e) {
  precise float sum = probability_of[e];
  if (uint64_t(bias) != 0ul) sum = sum + Floats(bias.v[0]).v[e];
  return sum;
}

void softmax(uint lane) {
  float most = negative(kInfinity);
  for (uint e = 0u; e < experts; ++e)
    if (!is_nan(probability_of[e])) most = max(most, probability_of[e]);
  barrier();
  precise float sum = 0.0;
  for (uint e = lane; e < experts; e += kLanes) {
    precise float below = probability_of[e] - most;
    probability_of[e] = exp_f32(below);
    sum = sum + probability_of[e];
  }
  lanes[lane] = sum;
  barrier();
  for (uint half_count = kLanes / 2u; half_count > 0u; half_count /= 2u) {
    if (lane < half_count) {
      precise float both = lanes[lane] + lanes[lane + half_count];
      lanes[lane] = both;
    }
    barrier();
  }
  for (uint e = lane; e < experts; e += kLanes) probability_of[e] = divide(probability_of[e], lanes[0]);
  barrier();
}

/// Takes the experts of all but the best groups out of the choice: a group's score is the sum of its two best.
void keep_best_groups(uint lane) {
  uint each = experts / groups;
  for (uint g = lane; g < groups; g += kLanes) {
    float best = negative(kInfinity), second = best;
    for (uint e = g * each; e < (g + 1u) * each; ++e) {
      float s = biased(e);
      if (s > best) {
        second = best;
        best = s;
      } else if (!is_nan(s)) {
        second = max(second, s);
      }
    }
    precise float both = best + second;
    score_of[g] = ordered(each > 1u ? both : best);
  }
  barrier();
  uint64_t kept = 0ul;  // every lane finds the same
  for (uint k = 0u; k < groups_used; ++k) {
    int best = kGone;
    uint group = 0u;
    for (uint g = 0u; g < groups; ++g)
      if ((kept >> g & 1ul) == 0ul && score_of[g] > best) {
        best = score_of[g];
        group = g;
      }
    kept |= 1ul << group;
  }
  for (uint e = lane; e < experts; e += kLanes)
    if ((kept >> (e / each) & 1ul) == 0ul) key_of[e] = ordered(negative(kInfinity));
  barrier();
}

void main() {
  uint row = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x;
  for (uint e = lane; e < experts; e += kLanes) {
    float score = Floats(uint64_t(scores) + 4ul * uint64_t(row) * uint64_t(experts)).v[e];
    probability_of[e] = kGating == kSigmoid ? over_sigmoid(1.0, score) : score;
  }
  barrier();
  if (kGating == kSoftmax) softmax(lane);
  for (uint e = lane; e < experts; e += kLanes) key_of[e] = ordered(biased(e));
  barrier();
  if (groups > 1u) keep_best_groups(lane);
  precise float sum = 0.0;
  float first = 0.0;
  for (uint k = 0u; k < top_k; ++k) {
    int best = kGone;
    uint place = lane;
    for (uint e = lane; e < experts; e += kLanes)
      if (key_of[e] > best) {
        best = key_of[e];
        place = e;
      }
    best_of[lane] = best;
    place_of[lane] = place;
    barrier();
    for (uint l = 0u; l < kLanes; ++l)
      if (best_of[l] > best || (best_of[l] == best && place_of[l] < place)) {
        best = best_of[l];
        place = place_of[l];
      }
    float probability = probability_of[place];
    if (kGating == kSoftmaxChosen) {
      if (k == 0u) first = probability;  // the largest
      precise float below = probability - first;
      probability = exp_f32(below);
    }
    sum = sum + probability;
    barrier();
    if (lane == 0u) {
      key_of[place] = kGone;
      picked[k] = probability;
      picked_expert[k] = int(place);
    }
    barrier();
  }
  if (lane >= top_k) return;
  bool divides = normalize != 0u || kGating == kSoftmaxChosen;
  int expert = picked_expert[lane];
  float least = uintBitsToFloat(0x38800000u);  // 2^-14
  precise float weight = (divides ? divide(picked[lane], sum < least ? least : sum) : picked[lane]) * scale;
  if (uint64_t(output_scale) != 0ul) weight = weight * Floats(output_scale.v[0]).v[expert];
  if (uint64_t(hidden_scale) != 0ul) weight = weight * Floats(hidden_scale.v[0]).v[expert];
  chosen.v[row * top_k + lane] = expert;
  weights.v[row * top_k + lane] = weight;
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "gates.glsl"
#include "states.glsl"
// A causal convolution in place, a thread a channel of a run: kernels/gpu/recurrent.h, ConvolveCall. Results go where
// the inputs were, so that a first launch (kKeepsBorders) keeps what a run needs of the rows before it. No thread
// leaves before the others: normalise_rows() has barriers, and lavapipe 22.3.6 gave wrong rows where spare threads had
// left, though no thread took that branch.
const uint kThreads = 128u, kAtOnce = 8u, kMostTaps = 8u, kLanes = 32u;
layout(local_size_x = 128) in;
layout(constant_id = 1) const uint kTaps = 4;
layout(constant_id = 2) const uint kKeepsBorders = 0;
layout(push_constant) uniform Arguments {
  Runs runs;
  Floats x;
  Addresses weight, bias;
  Floats borders;  // [runs, kTaps - 1, channels]
  uint64_t offset;
  uint channels, heads, silu;
  float eps;
};
const uint kColumns = kTaps - 1u;

shared float row_of[kAtOnce][kThreads];
shared float lanes[kAtOnce][kLanes];

float channel_of(uint64_t floats, uint row, uint c) {
  return Floats(floats + 4ul * (uint64_t(row) * uint64_t(channels) + uint64_t(c))).v[0];
}
/// The input of channel c, `row` rows before (negative) or behind the first of the sequence.
float input_at(StateRun run, int row, uint c) {
  if (row >= 0) return channel_of(uint64_t(x), uint(run.sequence_row + row), c);
  if (run.before == 0ul) return 0.0;
  return channel_of(run.before + offset, uint(int(kColumns) + row), c);
}

/// Rows of a workgroup's channels, a head's, to length 1: element i is lane i % 32's, and a tree adds the lanes.
void normalise_rows(inout float y[kAtOnce]) {
  uint thread = gl_LocalInvocationID.x, lane = thread % kLanes;
  for (uint r = 0u; r < kAtOnce; ++r) row_of[r][thread] = y[r];
  barrier();
  for (uint r = thread / kLanes; r < kAtOnce; r += kThreads / kLanes) {
    float squares = 0.0;
    for (uint i = 0u; i < kThreads; i += kLanes) squares = fused(row_of[r][lane + i], row_of[r][lane + i], squares);
    lanes[r][lane] = squares;
  }
  barrier();
  for (uint half_count = kLanes / 2u; half_count > 0u; half_count /= 2u) {
    for (uint r = thread / kLanes; r < kAtOnce; r += kThreads / kLanes)
      if (lane < half_count) {
        precise float sum = lanes[r][lane] + lanes[r][lane + half_count];
        lanes[r][lane] = sum;
      }
    barrier();
  }
  for (uint r = 0u; r < kAtOnce; ++r) {
    precise float square = lanes[r][0] + eps;
    precise float scaled = y[r] * divide(1.0, square_root(square));
    y[r] = scaled;
  }
}

void main() {
  uint number = gl_WorkGroupID.y, c = gl_GlobalInvocationID.x;
  StateRun run = runs.v[number];
  if (is_empty(run)) return;  // the same in all threads
  bool works = c < channels, normalises = gl_WorkGroupID.x < heads;
  if (kKeepsBorders != 0u) {
    for (uint t = 0u; t < kColumns && works && run.sequence_has_more != 0; ++t)
      borders.v[(number * kColumns + t) * channels + c] =
          input_at(run, run.first_row - run.sequence_row - int(kColumns) + int(t), c);
    return;
  }
  float taps[kMostTaps], inputs[kMostTaps - 1u + kAtOnce];
  float more = works && uint64_t(bias) != 0ul ? Floats(bias.v[0]).v[c] : 0.0;
  for (uint t = 0u; t < kTaps; ++t) taps[t] = works ? Floats(weight.v[0]).v[c * kTaps + t] : 0.0;
  for (uint t = 0u; t < kColumns; ++t) {
    inputs[t] = 0.0;
    if (!works) continue;
    inputs[t] = run.sequence_has_more != 0 ? borders.v[(number * kColumns + t) * channels + c]
                                           : input_at(run, int(t) - int(kColumns), c);
  }
  for (int done = 0; done < run.rows; done += int(kAtOnce)) {
    int left = run.rows - done;
    uint row = uint(run.first_row + done);
    for (uint r = 0u; r < kAtOnce; ++r)
      inputs[kColumns + r] = works && int(r) < left ? channel_of(uint64_t(x), row + r, c) : 0.0;
    float y[kAtOnce];
    for (uint r = 0u; r < kAtOnce; ++r) {
      precise float sum = 0.0;
      for (uint t = 0u; t < kTaps; ++t) sum = fused(taps[t], inputs[r + t], sum);
      if (uint64_t(bias) != 0ul) sum = sum + more;
      y[r] = silu != 0u ? over_sigmoid(sum, sum) : sum;
    }
    if (normalises) normalise_rows(y);
    for (uint r = 0u; r < kAtOnce; ++r)
      if (works && int(r) < left)
        Floats(uint64_t(x) + 4ul * (uint64_t(row + r) * uint64_t(channels) + uint64_t(c))).v[0] = y[r];
    uint read = uint(min(left, int(kAtOnce)));  // the last inputs move to the front
    for (uint t = 0u; t < kColumns; ++t) inputs[t] = inputs[read + t];
  }
  if (run.after == 0ul || !works) return;
  for (uint t = 0u; t < kColumns; ++t)
    Floats(run.after + offset + 4ul * (uint64_t(t) * uint64_t(channels) + uint64_t(c))).v[0] = inputs[t];
}

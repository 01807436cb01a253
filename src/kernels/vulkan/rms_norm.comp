#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
#include "quantize.glsl"
// out[r] = x[r] / rms(x[r]) * weight, and its int8 form. A workgroup a row. Squares are summed in the order of CUDA's
// kernel: 512 lanes have every 512th four (or every 512th element, of long rows and odd ones), a tree adds 32 lanes, and
// sums of four such trees follow one another.
const uint kThreads = 128u, kLanes = 512u, kLongestOfFours = 16384u;
layout(local_size_x = 128) in;
layout(push_constant) uniform Arguments {
  Floats x;
  Ints x_index;
  Addresses weight;
  Floats to;
  Words q, scales;
  uint rows, cols;
  float eps;
};

shared float lanes[kLanes];
shared float warps[16];

void main() {
  uint r = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;
  uint row = uint64_t(x_index) != 0ul ? uint(x_index.v[r]) : r;
  Floats from = Floats(uint64_t(x) + 4ul * uint64_t(row) * uint64_t(cols));
  Floats w = Floats(weight.v[0]);
  uint width = cols % 4u == 0u && cols <= kLongestOfFours ? 4u : 1u;
  for (uint lane = thread; lane < kLanes; lane += kThreads) {
    float sum = 0.0;
    for (uint first = lane * width; first < cols; first += kLanes * width)
      for (uint i = first; i < first + width; ++i) sum = fused(from.v[i], from.v[i], sum);
    lanes[lane] = sum;
  }
  barrier();
  if (thread < 16u) {
    for (uint half_count = 16u; half_count > 0u; half_count /= 2u)
      for (uint i = 0u; i < half_count; ++i) {
        precise float sum = lanes[32u * thread + i] + lanes[32u * thread + i + half_count];
        lanes[32u * thread + i] = sum;
      }
    warps[thread] = lanes[32u * thread];
  }
  barrier();
  precise float squares = 0.0;
  for (uint i = 0u; i < 16u; i += 4u) {
    precise float low = warps[i] + warps[i + 1u];
    precise float high = warps[i + 2u] + warps[i + 3u];
    precise float four = low + high;
    squares = squares + four;
  }
  precise float mean = divide(squares, float(cols)) + eps;
  float scale = divide(1.0, square_root(mean));
  if (uint64_t(to) != 0ul)
    for (uint i = thread; i < cols; i += kThreads) {
      precise float y = from.v[i] * scale;
      y = y * w.v[i];
      Floats(uint64_t(to) + 4ul * (uint64_t(r) * uint64_t(cols) + uint64_t(i))).v[0] = y;
    }
  if (uint64_t(q) == 0ul) return;
  for (uint b = thread; b < cols / 32u; b += kThreads) {
    float block[32];
    for (uint i = 0u; i < 32u; ++i) {
      precise float y = from.v[32u * b + i] * scale;
      y = y * w.v[32u * b + i];
      block[i] = y;
    }
    put_block(block, q, scales, r * (cols / 32u) + b);
  }
}

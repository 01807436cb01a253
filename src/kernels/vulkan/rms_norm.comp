#version 460
#extension GL_GOOGLE_include_directive : require
#include "device/vulkan/numerics.glsl"
// out[r] = x[r] / rms(x[r]) * weight, and its int8 form. A workgroup a row. Squares are summed in the order of CUDA's
// kernel: 512 lanes have every 512th four (or every 512th element, of long rows and odd ones), a tree adds 32 lanes, and
// sums of four such trees follow one another.
const uint kThreads = 256u, kLanes = 512u, kLongestOfFours = 16384u;
layout(local_size_x = 256) in;
#define TOGETHER
#include "quantize.glsl"
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
  for (uint half_count = 16u; half_count > 0u; half_count /= 2u) {
    for (uint lane = thread; lane < kLanes; lane += kThreads)
      if (lane % 32u < half_count) {
        precise float sum = lanes[lane] + lanes[lane + half_count];
        lanes[lane] = sum;
      }
    barrier();
  }
  precise float squares = 0.0;
  for (uint i = 0u; i < 16u; i += 4u) {
    precise float low = lanes[32u * i] + lanes[32u * i + 32u];
    precise float high = lanes[32u * i + 64u] + lanes[32u * i + 96u];
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
  for (uint base = 0u; base < cols / 4u; base += kThreads) {
    bool there = base + thread < cols / 4u;
    float four[4];
    for (uint i = 0u; i < 4u; ++i) {
      uint at = there ? 4u * (base + thread) + i : 0u;
      precise float y = from.v[at] * scale;
      y = y * w.v[at];
      four[i] = y;
    }
    put_words(there, four, q, scales, r * (cols / 4u) + base + thread);
  }
}

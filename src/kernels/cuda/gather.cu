#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = kGatherThreads, kQuad = kGatherQuad;
constexpr int kBlock = 32;  // of quantized activations
constexpr int kMostBlocks = 256;
constexpr std::uint64_t kMostWaitNs = 300'000'000'000;  // others may wait for a disk
constexpr int kLooksBeforeAsking = 256;                 // at the host's word, which is far

__device__ __forceinline__ std::uint64_t now_ns() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

/// How long a thread has waited, and whether it should go on.
class Patience {
 public:
  __device__ Patience(const GatherCall& call, GatherState& own) : call_(call), own_(own) {}
  /// Asked after each look that was in vain.
  __device__ bool goes_on() {
    if (++looks_ % kLooksBeforeAsking != 0) return true;
    if (begin_ == 0) begin_ = now_ns();
    const bool late = now_ns() - begin_ > kMostWaitNs;
    if (!late && load_acquire(call_.failed) == 0) return true;
    if (late) store_release(call_.failed, 1);
    own_.failed = 1;
    return false;
  }

 private:
  const GatherCall& call_;
  GatherState& own_;
  std::uint64_t begin_ = 0;
  int looks_ = 0;
};

// --- Many values ---

/// Until all others have stored gather `number` here, or somebody gives up.
__device__ void await_others(const GatherCall& call, GatherState& own, std::uint32_t number) {
  if (own.failed != 0) return;
  Patience patience(call, own);
  for (int d = 0; d < call.devices; ++d)
    while (d != call.index && static_cast<std::int32_t>(load_acquire(&own.told[d]) - number) < 0)
      if (!patience.goes_on()) return;
}

/// The block that ends last tells the others and waits for them.
__device__ void tell_and_await(const GatherCall& call) {
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  GatherState& own = *call.targets[call.index].state;
  if (atomicAdd(&own.arrived, 1u) + 1 < gridDim.x) return;
  own.arrived = 0;
  const std::uint32_t number = ++own.number;
  __threadfence_system();
  for (int d = 0; d < call.devices; ++d)
    if (d != call.index) store_release(&call.targets[d].state->told[call.index], number);
  await_others(call, own, number);
}

__device__ __forceinline__ float4 operator+(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/// How many rows there are, and which is the i-th.
__device__ __forceinline__ int rows_of(const GatherCall& call) {
  return call.some == nullptr ? call.rows : *call.end - *call.begin;
}
__device__ __forceinline__ std::int64_t row_at(const GatherCall& call, std::int64_t i) {
  return call.some == nullptr ? i : call.some[*call.begin + i];
}

/// Where the i-th four columns of a device stand among its own, and among all.
struct Place {
  std::int64_t from = 0, to = 0;
};
template <int kWidth = kQuad>
__device__ __forceinline__ Place place_of(const GatherCall& call, const GatherCall::Target& target, std::int64_t i) {
  const int each = target.own_cols / kWidth;
  const std::int64_t row = i / each, col = (i - row * each) * kWidth, at = row_at(call, row);
  return {at * target.own_cols + col, at * call.cols + target.first + col};
}

__device__ __forceinline__ float4 own_quad(const GatherCall& call, const Place& place) {
  float4 value = *reinterpret_cast<const float4*>(call.own + place.from);
  if (call.add) value = *reinterpret_cast<const float4*>(call.targets[call.index].out + place.to) + value;
  return value;
}

/// In every form that the device has. Groups of 8 lanes come together where int8 is made.
__device__ __forceinline__ void put(const GatherCall::Target& target, std::int64_t to, const float4& value) {
  const float v[kQuad] = {value.x, value.y, value.z, value.w};
  if (target.out != nullptr) *reinterpret_cast<float4*>(target.out + to) = value;
  if (target.bf16 != nullptr) {
    alignas(8) const __nv_bfloat162 two[2] = {__floats2bfloat162_rn(v[0], v[1]), __floats2bfloat162_rn(v[2], v[3])};
    *reinterpret_cast<uint2*>(target.bf16 + to) = *reinterpret_cast<const uint2*>(two);
  }
  if (target.q8.q != nullptr) quantize_block(v, target.q8.q + to / kBlock * kBlock, target.q8.scale + to / kBlock);
}

/// Four columns at a time: borders are multiples of 4, and of 32 where int8 is made.
__global__ void __launch_bounds__(kThreads) gather_many_kernel(const __grid_constant__ GatherCall call) {
  wait_for_predecessor();
  if (!call.one_device) allow_successor();
  const GatherCall::Target& own = call.targets[call.index];
  const std::int64_t count = std::int64_t{rows_of(call)} * (own.own_cols / kQuad),
                     step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const Place place = place_of(call, own, i);
    const float4 value = own_quad(call, place);
    for (int d = 0; d < call.devices; ++d) put(call.targets[d], place.to, value);
  }
  tell_and_await(call);
}

/// Of any columns, floats alone.
__global__ void __launch_bounds__(kThreads) gather_floats_kernel(const __grid_constant__ GatherCall call) {
  wait_for_predecessor();
  if (!call.one_device) allow_successor();
  const GatherCall::Target& own = call.targets[call.index];
  const std::int64_t count = std::int64_t{call.rows} * own.own_cols, step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const std::int64_t row = i / own.own_cols, to = row * call.cols + own.first + (i - row * own.own_cols);
    const float value = call.add ? own.out[to] + call.own[i] : call.own[i];
    for (int d = 0; d < call.devices; ++d) call.targets[d].out[to] = value;
  }
  tell_and_await(call);
}

__global__ void __launch_bounds__(32) meet_kernel(const __grid_constant__ GatherCall call) {
  wait_for_predecessor();
  if (!call.one_device) allow_successor();
  tell_and_await(call);
}

// --- Few values ---

/// Where the two words of this thread's quad from device `sender` lie in a device's memory.
__device__ __forceinline__ uint4* words(const GatherCall::Target& target, int devices, int sender, std::uint32_t turn) {
  const std::size_t place = (std::size_t{turn & 1} * devices + sender) * kFewGatherBlocks + blockIdx.x;
  return reinterpret_cast<uint4*>(target.words) + place * 2 * kThreads + threadIdx.x;
}

__device__ __forceinline__ void send(uint4* to, const float4& value, std::uint32_t turn) {
  const auto store = [turn](uint4* word, float a, float b) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(word), "r"(__float_as_uint(a)), "r"(turn),
                 "r"(__float_as_uint(b)), "r"(turn)
                 : "memory");
  };
  store(to, value.x, value.y);
  store(to + kThreads, value.z, value.w);
}

/// Halves of a word come as they may; each says for itself that it is there.
__device__ __forceinline__ bool receive(const uint4* from, std::uint32_t turn, float4& value) {
  const auto load = [](const uint4* word) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(word)
                 : "memory");
    return v;
  };
  const uint4 a = load(from), b = load(from + kThreads);
  value = {__uint_as_float(a.x), __uint_as_float(a.z), __uint_as_float(b.x), __uint_as_float(b.z)};
  return a.y == turn && a.w == turn && b.y == turn && b.w == turn;
}

/// As gather_many_kernel, but a thread has one quad of each device (or one float), sends its own, and puts all where
/// they belong here. first: which of a device's comes first.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    gather_few_kernel(const __grid_constant__ GatherCall call, std::int64_t first) {
  wait_for_predecessor();
  if (!call.one_device) allow_successor();
  const GatherCall::Target& here = call.targets[call.index];
  GatherState& own = *here.state;
  const std::uint32_t turn = own.turns[blockIdx.x] + 1;
  const bool failed = own.failed != 0;
  const std::int64_t i = first + std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t rows = rows_of(call);
  const auto has = [&](const GatherCall::Target& target) { return i < rows * (target.own_cols / kWidth); };
  const auto keep = [&](std::int64_t to, const float4& value) {
    if (kWidth == kQuad)
      put(here, to, value);
    else
      here.out[to] = value.x;
  };
  if (has(here)) {
    const Place place = place_of<kWidth>(call, here, i);
    float4 value = {};
    if (kWidth == kQuad)
      value = own_quad(call, place);
    else
      value.x = call.add ? here.out[place.to] + call.own[place.from] : call.own[place.from];
    for (int d = 0; d < call.devices; ++d)
      if (d != call.index) send(words(call.targets[d], call.devices, call.index, turn), value, turn);
    keep(place.to, value);
  }
  for (int d = 0; d < call.devices; ++d) {
    const GatherCall::Target& from = call.targets[d];
    if (d == call.index || !has(from)) continue;
    const uint4* const came = words(here, call.devices, d, turn);
    Patience patience(call, own);
    float4 value;
    while (!receive(came, turn, value) && !failed && patience.goes_on()) {
    }
    keep(place_of<kWidth>(call, from, i).to, value);
  }
  __syncthreads();
  if (threadIdx.x == 0) own.turns[blockIdx.x] = turn;
}

}  // namespace

cudaError_t gather(const GatherCall& call, cudaStream_t stream) {
  if (call.devices < 2 || call.devices > kMostGpus) return cudaErrorInvalidValue;
  const GatherCall::Target& own = call.targets[call.index];
  const auto multiples_of = [&](int n) {
    bool all = call.cols % n == 0;
    for (int d = 0; d < call.devices; ++d)
      all = all && call.targets[d].first % n == 0 && call.targets[d].own_cols % n == 0;
    return all;
  };
  const bool quads = multiples_of(kQuad);
  if ((own.q8.q != nullptr && !multiples_of(kBlock)) || (call.some != nullptr && !quads) ||
      (!quads && (own.out == nullptr || own.bf16 != nullptr)) || (call.add && own.out == nullptr))
    return cudaErrorInvalidValue;
  const auto blocks_of = [&](const GatherCall::Target& target) {
    const std::int64_t items = std::int64_t{call.rows} * target.own_cols / (quads ? kQuad : 1);
    return (items + kThreads - 1) / kThreads;
  };
  std::int64_t most = 1;
  for (int d = 0; d < call.devices; ++d) most = std::max(most, blocks_of(call.targets[d]));
  if (call.through_host || (quads && most <= kFewGatherBlocks)) {
    for (std::int64_t block = 0; block < most; block += kFewGatherBlocks) {
      const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(kFewGatherBlocks, most - block));
      const cudaError_t error = launch(quads ? gather_few_kernel<kQuad> : gather_few_kernel<1>, dim3(blocks),
                                       dim3(kThreads), 0, stream, call, block * kThreads);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
  if (call.meets_first) {
    if (const cudaError_t error = meet(call, stream); error != cudaSuccess) return error;
  }
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(blocks_of(own), 1, kMostBlocks));
  return launch(quads ? gather_many_kernel : gather_floats_kernel, dim3(blocks), dim3(kThreads), 0, stream, call);
}

cudaError_t meet(const GatherCall& call, cudaStream_t stream) {
  if (call.devices < 2 || call.devices > kMostGpus || call.through_host) return cudaErrorInvalidValue;
  return launch(meet_kernel, dim3(1), dim3(32), 0, stream, call);
}

}  // namespace millrace::kernels::cuda

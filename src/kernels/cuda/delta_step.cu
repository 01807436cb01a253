// Contract in delta_step.h. A block has a value head of a sequence: its whole matrix in registers, and all that goes
// into it. Heads that share a key each make it for themselves. What does not depend on the kernels before is asked for
// first: the matrix, the convolution's last inputs, and the weights. A pass has no other row of the sequence, so that
// no kernel of it writes what is read here of states.
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/gated_norm.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/recurrent.cuh"
#include "kernels/cuda/softplus.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
static_assert(kWarps * kWarpColumns == kMostDeltaValues);
static_assert(2 * kMostDeltaKeys + kMostDeltaValues <= kThreads - 2 * kWarp);
constexpr int kBetaThread = kThreads - kWarp, kDecayThread = kThreads - 2 * kWarp;  // of warps without channels

/// Where a channel of a head's query, key and value is among all channels.
__device__ __forceinline__ int channel_of(const DeltaRuleCall& rule, int head, int key_head, int i) {
  const int keys = rule.key_dim, queries = rule.key_heads * keys;
  if (i < keys) return key_head * keys + i;
  if (i < 2 * keys) return queries + key_head * keys + i - keys;
  return 2 * queries + head * rule.value_dim + i - 2 * keys;
}

/// A vector of `keys` to length 1, by a warp: as l2_norm_heads().
template <int kVectors>
__device__ __forceinline__ void normalise(float* v, int keys, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float held[kVectors], squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) held[i] = lane + kWarp * i < keys ? v[lane + kWarp * i] : 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) squares = __fmaf_rn(held[i], held[i], squares);
  const float scale = 1.0f / sqrtf(sum_over_warp(squares) + eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    if (lane + kWarp * i < keys) v[lane + kWarp * i] = held[i] * scale;
}

template <int kEach>
__global__ void __launch_bounds__(kThreads, 1) delta_step_kernel(const __grid_constant__ DeltaStepCall call) {
  constexpr int kKeys = kParts * kEach, kColumns = kDeltaTaps - 1;
  __shared__ alignas(16) float query[kKeys], key[kKeys], values[kMostDeltaValues], given[kMostDeltaValues];
  __shared__ float beta, decay;
  allow_successor();
  const ConvolveCall& convolution = call.convolution;
  const DeltaRuleCall& rule = call.rule;
  const StateRun run = convolution.runs.run[blockIdx.y];
  const Seat seat;
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x);
  const int keys = rule.key_dim, group = rule.value_heads / rule.key_heads;
  const int key_head = rule.tiled ? head % rule.key_heads : head / group;
  const bool is_first = head == (rule.tiled ? key_head : key_head * group);  // of the heads that share the key
  const bool has_channel = thread < 2 * keys + rule.value_dim, has_columns = seat.column < rule.value_dim;

  const std::int64_t mine =
      (static_cast<std::int64_t>(head) * rule.value_dim + seat.column / kStateLanes * kStateLanes) * keys +
      seat.column % kStateLanes;
  Slice<kEach> state;
  state.load(run.before == nullptr || !has_columns ? nullptr : floats_at(run.before, rule.offset) + mine, kStateLanes,
             keys, seat);
  const int channel = channel_of(rule, head, key_head, has_channel ? thread : 0);
  float weight[kDeltaTaps], in[kDeltaTaps];
#pragma unroll
  for (int t = 0; t < kDeltaTaps; ++t)
    weight[t] = floats_at(*convolution.weight, 0)[static_cast<std::int64_t>(channel) * kDeltaTaps + t];
#pragma unroll
  for (int t = 0; t < kColumns; ++t)
    in[t] =
        run.before == nullptr
            ? 0
            : floats_at(run.before, convolution.offset)[static_cast<std::int64_t>(t) * convolution.channels + channel];
  const int fours = call.norm.head_dim / 4;
  const bool gates = thread < fours;
  float4 by[1] = {make_float4(0, 0, 0, 0)}, gate[1] = {make_float4(0, 0, 0, 0)};
  if (gates) by[0] = reinterpret_cast<const float4*>(*call.norm.weight)[thread];
  for (int k = keys + thread; k < kKeys; k += kThreads) query[k] = key[k] = 0;
  wait_for_predecessor();
  if (run.rows == 0) return;

  const std::int64_t row = run.first_row, number = row * rule.value_heads + head;
  if (has_channel) {
    in[kColumns] = convolution.x[row * convolution.channels + channel];
    float sum = 0;
#pragma unroll
    for (int t = 0; t < kDeltaTaps; ++t) sum = __fmaf_rn(weight[t], in[t], sum);
    if (convolution.bias != nullptr) sum += floats_at(*convolution.bias, 0)[channel];
    float* const to = thread < keys       ? query + thread
                      : thread < 2 * keys ? key + thread - keys
                                          : values + thread - 2 * keys;
    *to = convolution.silu ? over_sigmoid(sum, sum) : sum;
    if (run.after != nullptr && (is_first || thread >= 2 * keys)) {
#pragma unroll
      for (int t = 0; t < kColumns; ++t)
        floats_at(run.after, convolution.offset)[static_cast<std::int64_t>(t) * convolution.channels + channel] =
            in[t + 1];
    }
  }
  if (thread == kBetaThread) beta = over_sigmoid(1.0f, rule.beta[number]);
  if (thread == kDecayThread)
    decay = exp_f32(floats_at(*call.a, 0)[head] * softplus(rule.decay[number] + floats_at(*call.a_bias, 0)[head]));
  if (gates) gate[0] = reinterpret_cast<const float4*>(call.norm.gate)[number * fours + thread];
  __syncthreads();
  if (seat.warp < 2) normalise<(kKeys + kWarp - 1) / kWarp>(seat.warp == 0 ? query : key, keys, call.eps);
  __syncthreads();

  if (has_columns) {  // whole warps
    float v[kEach], sum[kOwnColumns];
    take_keys(key, seat, v);
    state.dot(v, sum);
    sum_everywhere(sum);
    state.forget(decay);
    const float2 value = *reinterpret_cast<const float2*>(values + seat.column);
    const float difference[kOwnColumns] = {beta * (value.x - decay * sum[0]), beta * (value.y - decay * sum[1])};
    state.add(difference, v);
    take_keys(query, seat, v);
    state.dot(v, sum);
    const float result = sum_of_one(sum, seat.part) * rule.scale;
    if (seat.part % (kParts / 2) == 0) given[seat.column + seat.part / (kParts / 2)] = result;
    if (run.after != nullptr) state.store(floats_at(run.after, rule.offset) + mine, kStateLanes, keys, seat);
  }
  __syncthreads();
  if (seat.warp > 0) return;
  const float4 mixed[1] = {gates ? reinterpret_cast<const float4*>(given)[thread] : make_float4(0, 0, 0, 0)};
  gate_normal_head<1>(call.norm, number, mixed, gate, by);
}

}  // namespace

cudaError_t delta_step(const DeltaStepCall& call, cudaStream_t stream) {
  const DeltaRuleCall& rule = call.rule;
  if (call.convolution.runs.count <= 0) return cudaSuccess;
  if (call.convolution.taps != kDeltaTaps || rule.key_dim > kMostDeltaKeys || rule.value_dim > kMostDeltaValues ||
      rule.value_dim % kStateLanes != 0 || call.norm.head_dim != rule.value_dim)
    return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(rule.value_heads), static_cast<unsigned>(call.convolution.runs.count));
  const auto run = [&](auto* kernel) { return launch(kernel, grid, dim3(kThreads), 0, stream, call); };
  if (rule.key_dim <= 4 * kParts) return run(delta_step_kernel<4>);
  if (rule.key_dim <= 8 * kParts) return run(delta_step_kernel<8>);
  return run(delta_step_kernel<16>);
}
static_assert(kMostDeltaKeys == 16 * kParts);

}  // namespace millrace::kernels::cuda

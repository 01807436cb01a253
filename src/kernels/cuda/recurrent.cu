// Kernels of layers with a state; contracts in recurrent.h.
//
// Delta rule and scan: a block has 32 columns (values) of one head's matrix and one sequence, and goes through all its
// rows. The columns stay in registers from the first row to the last: eight lanes share two columns, each with every
// eighth four of their keys. What rows bring comes to shared memory a chunk ahead. A row's sums over the keys are the
// only words between lanes; those of the output are added while the next row is at work. Columns do not know of each
// other, so that the warps of a block meet once a chunk. For single rows (decode) the time is that of the state's
// bytes: every thread asks for its whole part at once.
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/recurrent.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

// ---------------------------------------------------------------------------------------------------------------------
// Convolution: a channel of a run a thread. Results go where the inputs were, so that what a run needs of the rows
// before it is kept first, where there are such.

constexpr int kConvolvedAtOnce = 8;  // rows

/// The input of channel c, `row` rows before (negative) or behind the first of the sequence.
__device__ __forceinline__ float input_at(const ConvolveCall& call, const StateRun& run, int row, int c) {
  if (row >= 0) return call.x[static_cast<std::int64_t>(run.sequence_row + row) * call.channels + c];
  if (run.before == nullptr) return 0;
  return floats_at(run.before, call.offset)[static_cast<std::int64_t>(call.taps - 1 + row) * call.channels + c];
}

__global__ void __launch_bounds__(kThreads) keep_borders_kernel(ConvolveCall call) {
  allow_successor();
  const StateRun run = call.runs.run[blockIdx.y];
  const int c = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x), columns = call.taps - 1;
  wait_for_predecessor();
  if (c >= call.channels || is_empty(run) || run.sequence_has_more == 0) return;
  for (int t = 0; t < columns; ++t) {
    const std::int64_t at = (static_cast<std::int64_t>(blockIdx.y) * columns + t) * call.channels + c;
    call.borders[at] = input_at(call, run, run.first_row - run.sequence_row - columns + t, c);
  }
}

/// Rows of a block's channels, a head's, to length 1, as l2_norm_heads() has it: element i is lane i % 32's.
__device__ __forceinline__ void normalise_rows(float (&y)[kConvolvedAtOnce], float eps) {
  static_assert(kThreads == kConvolvedHead);
  __shared__ float rows[kConvolvedAtOnce][kThreads], scale[kConvolvedAtOnce];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
#pragma unroll
  for (int r = 0; r < kConvolvedAtOnce; ++r) rows[r][thread] = y[r];
  __syncthreads();
  for (int r = thread / kWarp; r < kConvolvedAtOnce; r += kWarps) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kThreads; i += kWarp) squares = __fmaf_rn(rows[r][lane + i], rows[r][lane + i], squares);
    squares = sum_over_warp(squares);
    if (lane == 0) scale[r] = 1.0f / sqrtf(squares + eps);
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kConvolvedAtOnce; ++r) y[r] *= scale[r];
}

template <int kTaps>
__global__ void __launch_bounds__(kThreads) convolve_kernel(const __grid_constant__ ConvolveCall call) {
  constexpr int kColumns = kTaps - 1;
  allow_successor();
  const StateRun run = call.runs.run[blockIdx.y];
  const int c = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const bool works = c < call.channels && !is_empty(run);
  float weight[kTaps], bias = 0;
  if (works) {
#pragma unroll
    for (int t = 0; t < kTaps; ++t) weight[t] = floats_at(*call.weight, 0)[static_cast<std::int64_t>(c) * kTaps + t];
    if (call.bias != nullptr) bias = floats_at(*call.bias, 0)[c];
  }
  wait_for_predecessor();
  if (!works) return;
  float in[kColumns + kConvolvedAtOnce];
#pragma unroll
  for (int t = 0; t < kColumns; ++t) {
    const std::int64_t kept = (static_cast<std::int64_t>(blockIdx.y) * kColumns + t) * call.channels + c;
    in[t] = run.sequence_has_more != 0 ? call.borders[kept] : input_at(call, run, t - kColumns, c);
  }
  const float* x = call.x + static_cast<std::int64_t>(run.first_row) * call.channels + c;
  const int stride = call.out != nullptr ? call.out_stride : call.channels;
  float* out = (call.out != nullptr ? call.out : call.x) + static_cast<std::int64_t>(run.first_row) * stride + c;
  for (int left = run.rows; left > 0; left -= kConvolvedAtOnce) {
#pragma unroll
    for (int r = 0; r < kConvolvedAtOnce; ++r)
      if (r < left) in[kColumns + r] = x[static_cast<std::int64_t>(r) * call.channels];
    float y[kConvolvedAtOnce];
#pragma unroll
    for (int r = 0; r < kConvolvedAtOnce; ++r) {
      y[r] = 0;
      if (r >= left) continue;
      float sum = 0;
#pragma unroll
      for (int t = 0; t < kTaps; ++t) sum = __fmaf_rn(weight[t], in[r + t], sum);
      if (call.bias != nullptr) sum += bias;
      y[r] = call.silu ? over_sigmoid(sum, sum) : sum;
    }
    if (blockIdx.x < static_cast<unsigned>(call.heads)) normalise_rows(y, call.eps);
#pragma unroll
    for (int r = 0; r < kConvolvedAtOnce; ++r)
      if (r < left) out[static_cast<std::int64_t>(r) * stride] = y[r];
        // The last inputs move to the front; `left` of them were read, all where there are more rows.
#pragma unroll
    for (int t = 0; t < kColumns; ++t) {
      float last = in[kConvolvedAtOnce + t];
#pragma unroll
      for (int r = 1; r < kConvolvedAtOnce; ++r)
        if (left == r) last = in[r + t];
      in[t] = last;
    }
    x += static_cast<std::int64_t>(kConvolvedAtOnce) * call.channels;
    out += static_cast<std::int64_t>(kConvolvedAtOnce) * stride;
  }
  if (run.after == nullptr) return;
  float* const after = floats_at(run.after, call.offset) + c;
#pragma unroll
  for (int t = 0; t < kColumns; ++t) after[static_cast<std::int64_t>(t) * call.channels] = in[t];
}

// ---------------------------------------------------------------------------------------------------------------------
// States

constexpr int kBlockColumns = kWarps * kWarpColumns;
static_assert(kBlockColumns == kStateLanes && kScanLanes % kWarpColumns == 0);

/// What a block's rows bring: vectors over the keys that are written into the state and that read it, the values of its
/// columns, and two numbers of the head, the second of which may be one for each key.
struct RowSource {
  const float *writes, *reads, *values, *step, *decay;  // of the window's first row
  std::int64_t stride, gate_stride, decay_stride;       // floats between rows
  int keys, columns;                                    // columns: of the block, that the head has
};

/// kDecays: a decay for each key.
template <int kEach, bool kDecays>
struct Chunk {
  static constexpr int kRows = (kEach <= 16 ? 16 : 8) / (kDecays ? 2 : 1), kKeys = kParts * kEach;
  alignas(16) float writes[kRows][kKeys], reads[kRows][kKeys];
  alignas(16) float values[kRows][kBlockColumns];
  alignas(16) float decay[kRows][kDecays ? kKeys : 1];
  float step[kRows];

  /// Keys that the head does not have stay zero.
  __device__ __forceinline__ void clear(int keys) {
    if (keys == kKeys) return;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kKeys; i += kThreads) {
      if (i % kKeys < keys) continue;
      writes[i / kKeys][i % kKeys] = reads[i / kKeys][i % kKeys] = 0;
      if constexpr (kDecays) decay[i / kKeys][i % kKeys] = 0;
    }
  }
  /// Starts the copies of `rows` rows, a row a warp at a time, of all but their steps.
  __device__ __forceinline__ void fetch(const RowSource& from, std::int64_t first_row, int rows, const Seat& seat) {
    for (int r = seat.warp; r < rows; r += kWarps) {
      const std::int64_t row = first_row + r, at = row * from.stride;
      for (int k = seat.lane; k < from.keys; k += kWarp) {
        copy_4(&writes[r][k], from.writes + at + k);
        copy_4(&reads[r][k], from.reads + at + k);
        if constexpr (kDecays) copy_4(&decay[r][k], from.decay + row * from.decay_stride + k);
      }
      if (seat.lane < from.columns) copy_4(&values[r][seat.lane], from.values + at + seat.lane);
      if constexpr (!kDecays)
        if (seat.lane == 0) copy_4(&decay[r][0], from.decay + row * from.decay_stride);
    }
    copies_commit();
  }
};

/// Asks for what a block reads of a state, before what it depends on has ended: the L2 cache is the same for all.
__device__ __forceinline__ void ask_for(const float* matrix, int floats) {
  constexpr int kLine = 128 / sizeof(float);
  for (int i = static_cast<int>(threadIdx.x) * kLine; i < floats; i += kThreads * kLine)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(matrix + i));
}

/// What the rule does with a row. The order of its steps keeps the processor busy while lanes wait for each other.
/// Where each key has a decay, the state forgets before it is read; the row before has its output then.
template <int kEach, bool kDecays>
struct DeltaRows {
  using Rows = Chunk<kEach, kDecays>;
  float scale;
  Slice<kEach> state;
  float key[kEach];  // of the row to come

  __device__ __forceinline__ void begin(const Rows& chunk, const Seat& seat) { take_keys(chunk.writes[0], seat, key); }
  /// The output of a row whose key is in the state, before the next one's is: lanes with part % 4 == 0 have it.
  __device__ __forceinline__ float output(const Rows& chunk, int r, const Seat& seat) const {
    float query[kEach], sum[kOwnColumns];
    take_keys(chunk.reads[r], seat, query);
    state.dot(query, sum);
    return sum_of_one(sum, seat.part) * scale;
  }
  /// kFinishes: `finished` becomes the output of the row before.
  template <bool kFinishes>
  __device__ __forceinline__ void work(const Rows& chunk, int r, const Seat& seat, float& finished) {
    const float beta = chunk.step[r];
    const float2 value = *reinterpret_cast<const float2*>(&chunk.values[r][seat.column]);
    const float decay = kDecays ? 1.0f : chunk.decay[r][0];
    float sum[kOwnColumns];
    if constexpr (kDecays) {
      if constexpr (kFinishes) finished = output(chunk, r - 1, seat);
      float decays[kEach];
      take_keys(chunk.decay[r], seat, decays);
      state.forget(decays);
    }
    state.dot(key, sum);
    sum_everywhere(sum);
    if constexpr (!kDecays) {
      if constexpr (kFinishes) finished = output(chunk, r - 1, seat);
      state.forget(decay);
    }
    const float difference[kOwnColumns] = {beta * (value.x - decay * sum[0]), beta * (value.y - decay * sum[1])};
    state.add(difference, key);
    take_keys(chunk.writes[min(r + 1, Rows::kRows - 1)], seat, key);
  }
  /// What a number becomes on its way to Chunk::step.
  __device__ static __forceinline__ float step_of(float x) { return over_sigmoid(1.0f, x); }
};

template <int kEach>
struct ScanRows {
  using Rows = Chunk<kEach, false>;
  float skip;
  Slice<kEach> state;
  float b[kEach];  // of the row to come
  float sum[kOwnColumns], value_of_sum;

  __device__ __forceinline__ void begin(const Rows& chunk, const Seat& seat) { take_keys(chunk.writes[0], seat, b); }
  __device__ __forceinline__ float output(const Rows&, int, const Seat& seat) const {
    return __fmaf_rn(skip, value_of_sum, sum_of_one(sum, seat.part));
  }
  template <bool kFinishes>
  __device__ __forceinline__ void work(const Rows& chunk, int r, const Seat& seat, float& finished) {
    const float decay = chunk.decay[r][0], step = chunk.step[r];
    const float2 value = *reinterpret_cast<const float2*>(&chunk.values[r][seat.column]);
    float c[kEach];
    take_keys(chunk.reads[r], seat, c);
    if constexpr (kFinishes) finished = output(chunk, r - 1, seat);
    const float written[kOwnColumns] = {step * value.x, step * value.y};
    state.forget(decay);
    state.add(written, b);
    take_keys(chunk.writes[min(r + 1, Rows::kRows - 1)], seat, b);
    state.dot(c, sum);
    value_of_sum = seat.part < kParts / 2 ? value.x : value.y;
  }
  __device__ static __forceinline__ float step_of(float x) { return x; }
};

/// A block's columns through all rows of its sequence. place: floats from the layer's first matrix to the block's
/// columns; pitch: lanes of the layout. out: of the window's first row and the block's first column.
template <typename Work>
__device__ __forceinline__ void go_through_rows(Work& work, const StateRuns& runs, std::int64_t offset,
                                                std::int64_t place, int pitch, const RowSource& from, float* out,
                                                std::int64_t out_stride) {
  using Rows = typename Work::Rows;
  __shared__ Rows chunks[2];
  constexpr int kRows = Rows::kRows;
  const Seat seat;
  const int sequence = static_cast<int>(blockIdx.z), thread = static_cast<int>(threadIdx.x);
  int run = runs.first_run[sequence];
  const int last_run = runs.first_run[sequence + 1];
  const std::byte* const before = run < last_run ? runs.run[run].before : nullptr;
  if (before != nullptr) ask_for(floats_at(before, offset) + place, from.keys * from.columns);
  wait_for_predecessor();
  if (run == last_run) return;
  const int first_row = runs.run[run].first_row;
  const int end_row = runs.run[last_run - 1].first_row + runs.run[last_run - 1].rows;
  // Of heads with an odd number of sixteens the last block has half its columns.
  const bool has_columns = seat.column < from.columns;
  const std::int64_t mine =
      place + seat.column / pitch * (static_cast<std::int64_t>(from.keys) * pitch) + seat.column % pitch;
  work.state.load(before == nullptr || !has_columns ? nullptr : floats_at(before, offset) + mine, pitch, from.keys,
                  seat);
  chunks[0].clear(from.keys);
  chunks[1].clear(from.keys);

  int run_end = runs.run[run].first_row + runs.run[run].rows;
  const auto leave_runs = [&](int row) {  // those that end before this row
    while (run < last_run && run_end == row) {
      std::byte* const after = runs.run[run].after;
      if (after != nullptr && has_columns) work.state.store(floats_at(after, offset) + mine, pitch, from.keys, seat);
      if (++run < last_run) run_end = runs.run[run].first_row + runs.run[run].rows;
    }
  };
  leave_runs(first_row);
  // Lanes with part 0 and 4 have the outputs of the thread's two columns.
  float* const my_out = out + seat.column + seat.part / (kParts / 2);
  const bool puts_out = has_columns && seat.part % (kParts / 2) == 0;
  const auto put_out = [&](int row, float value) {
    if (puts_out) my_out[row * out_stride] = value;
  };

  const auto step_at = [&](int row) { return from.step[row * from.gate_stride]; };
  chunks[0].fetch(from, first_row, min(kRows, end_row - first_row), seat);
  if (thread < min(kRows, end_row - first_row)) chunks[0].step[thread] = Work::step_of(step_at(first_row + thread));
  int stage = 0;
  for (int row = first_row; row < end_row; row += kRows, stage ^= 1) {
    Rows& chunk = chunks[stage];
    const int rows = min(kRows, end_row - row), next = row + kRows, next_rows = min(kRows, end_row - next);
    copies_wait<0>();
    __syncthreads();  // the chunk is there, and nobody reads the other one
    float next_step = 0;
    if (next_rows > 0) chunks[stage ^ 1].fetch(from, next, next_rows, seat);
    if (thread < next_rows) next_step = step_at(next + thread);
    work.begin(chunk, seat);
    float finished = 0;
    work.template work<false>(chunk, 0, seat, finished);
    leave_runs(row + 1);
#pragma unroll 2
    for (int r = 1; r < rows; ++r) {
      work.template work<true>(chunk, r, seat, finished);
      put_out(row + r - 1, finished);
      leave_runs(row + r + 1);
    }
    put_out(row + rows - 1, work.output(chunk, rows - 1, seat));
    if (thread < next_rows) chunks[stage ^ 1].step[thread] = Work::step_of(next_step);
  }
}

template <int kEach, bool kDecays>
__global__ void __launch_bounds__(kThreads, kEach <= 16 ? 3 : 2)
    delta_rule_kernel(const __grid_constant__ DeltaRuleCall call) {
  allow_successor();
  const int head = static_cast<int>(blockIdx.y), first_column = static_cast<int>(blockIdx.x) * kBlockColumns;
  const int key_head = call.tiled ? head % call.key_heads : head / (call.value_heads / call.key_heads);
  const int keys = call.key_dim, queries = call.key_heads * keys, values = call.value_heads * call.value_dim;
  const int value = head * call.value_dim + first_column;
  RowSource from;
  from.reads = call.qkv + key_head * keys;
  from.writes = from.reads + queries;
  from.values = call.qkv + 2 * queries + value;
  from.step = call.beta + head;
  from.decay = call.decay + head * (kDecays ? keys : 1);
  from.stride = 2 * queries + values;
  from.gate_stride = call.value_heads;
  from.decay_stride = call.value_heads * (kDecays ? keys : 1);
  from.keys = keys;
  from.columns = kBlockColumns;
  DeltaRows<kEach, kDecays> rows;
  rows.scale = call.scale;
  const std::int64_t place = static_cast<std::int64_t>(value) * keys;
  go_through_rows(rows, call.runs, call.offset, place, kStateLanes, from, call.out + value, values);
}

template <int kEach>
__global__ void __launch_bounds__(kThreads, kEach <= 16 ? 3 : 2) scan_kernel(const __grid_constant__ ScanCall call) {
  allow_successor();
  const int head = static_cast<int>(blockIdx.y), first_column = static_cast<int>(blockIdx.x) * kBlockColumns;
  const int group = head / (call.heads / call.groups), keys = call.keys, values = call.heads * call.head_dim;
  const int value = head * call.head_dim + first_column;
  RowSource from;
  from.values = call.x + value;
  from.writes = call.x + values + group * keys;
  from.reads = from.writes + call.groups * keys;
  from.step = call.step + head;
  from.decay = call.decay + head;
  from.stride = values + 2 * call.groups * keys;
  from.gate_stride = from.decay_stride = call.heads;
  from.keys = keys;
  from.columns = min(kBlockColumns, call.head_dim - first_column);
  ScanRows<kEach> rows;
  rows.skip = floats_at(*call.skip, 0)[head];
  const std::int64_t place = static_cast<std::int64_t>(value) * keys;
  const int pitch = call.head_dim % kStateLanes == 0 ? kStateLanes : kScanLanes;
  go_through_rows(rows, call.runs, call.offset, place, pitch, from, call.out + value, values);
}

/// run(std::integral_constant<int, keys of a thread>()), the fewest that will do.
template <typename Run>
cudaError_t for_keys(int keys, const Run& run) {
  if (keys <= 4 * kParts) return run(std::integral_constant<int, 4>());
  if (keys <= 8 * kParts) return run(std::integral_constant<int, 8>());
  if (keys <= 16 * kParts) return run(std::integral_constant<int, 16>());
  if (keys <= kMostStateKeys) return run(std::integral_constant<int, 32>());
  return cudaErrorInvalidValue;
}
static_assert(kMostStateKeys == 32 * kParts);

dim3 grid_of(int values, int heads, int sequences) {
  return dim3(static_cast<unsigned>((values + kBlockColumns - 1) / kBlockColumns), static_cast<unsigned>(heads),
              static_cast<unsigned>(sequences));
}

}  // namespace

cudaError_t convolve(const ConvolveCall& call, cudaStream_t stream) {
  if (call.runs.count <= 0 || call.channels <= 0) return cudaSuccess;
  if (call.heads * kConvolvedHead > call.channels) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>((call.channels + kThreads - 1) / kThreads),
                  static_cast<unsigned>(call.runs.count));
  if (call.borders != nullptr) {
    const cudaError_t error = launch(keep_borders_kernel, grid, dim3(kThreads), 0, stream, call);
    if (error != cudaSuccess) return error;
  }
  const auto run = [&](auto* kernel) { return launch(kernel, grid, dim3(kThreads), 0, stream, call); };
  switch (call.taps) {
    case 2:
      return run(convolve_kernel<2>);
    case 3:
      return run(convolve_kernel<3>);
    case 4:
      return run(convolve_kernel<4>);
    case 5:
      return run(convolve_kernel<5>);
    case 6:
      return run(convolve_kernel<6>);
    case 7:
      return run(convolve_kernel<7>);
    case 8:
      return run(convolve_kernel<8>);
    default:
      return cudaErrorInvalidValue;
  }
}
static_assert(kMostTaps == 8);

cudaError_t delta_rule(const DeltaRuleCall& call, cudaStream_t stream) {
  if (call.runs.sequences <= 0) return cudaSuccess;
  return for_keys(call.key_dim, [&](auto each) {
    constexpr int kEach = decltype(each)::value;
    const auto run = [&](auto* kernel) {
      return launch(kernel, grid_of(call.value_dim, call.value_heads, call.runs.sequences), dim3(kThreads), 0, stream,
                    call);
    };
    return call.channel_decays ? run(delta_rule_kernel<kEach, true>) : run(delta_rule_kernel<kEach, false>);
  });
}

cudaError_t scan(const ScanCall& call, cudaStream_t stream) {
  if (call.runs.sequences <= 0) return cudaSuccess;
  return for_keys(call.keys, [&](auto each) {
    return launch(scan_kernel<decltype(each)::value>, grid_of(call.head_dim, call.heads, call.runs.sequences),
                  dim3(kThreads), 0, stream, call);
  });
}

}  // namespace millrace::kernels::cuda

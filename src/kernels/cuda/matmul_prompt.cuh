// The kernel of matmul_prompt() (compute capability 9.0, built for sm_90a): weights become bfloat16 and the tensor core
// sums in float, so that nothing but the decoding is left to the threads.
//
// A block has two warpgroups; each multiplies 64 weight rows by all kWidth columns (rows of x), in steps of 64 elements
// of K. While the tensor core works on a step the threads decode the next one's weights, each warp those 16 rows that
// it multiplies itself, one block of 32 elements a lane. Activations and raw weights come by cp.async, a step or two
// ahead, and raw weights a segment ahead.
//
// Tiles of bfloat16 have rows of 128 bytes, their chunks of 16 swizzled: chunk c of row r lies at c ^ (r % 8).
// A row of the tile has a place there: a warp's 16 places are rows 2 g + h of its 16 at 8 h + g, so that lanes hold
// neighbouring rows (g = lane / 4); in pairs, row g of the gate (h = 0) or of up (h = 1) of its 8.
#pragma once

#include "kernels/cuda/matmul_prompt_launch.cuh"
#include "kernels/cuda/quads.cuh"

namespace millrace::kernels::cuda {

template <DType kDType, int kColumnCount>
struct PromptTile {
  using Q = Quads<kDType>;
  static constexpr int kRows = kPromptRows, kWidth = kColumnCount, kThreads = 256;
  static constexpr int kStep = 64, kStepBytes = 128;
  static constexpr int kParts = Q::kHalves ? 2 : 1;  // scale groups of a block of 32
  static constexpr int kStepsOfSegment = kSegment / kStep;
  static constexpr int kInputCopies = kWidth * 8 / kThreads;  // of 16 bytes, a thread and step
  static constexpr int kChunks = (Q::kBytes + (Q::kAlign < 16 ? 16 - Q::kAlign : 0) + 15) / 16;
  static constexpr int kRawPitch = 16 * (kChunks + (kChunks % 2 == 0));  // an odd number of chunks

  static constexpr int kWeightBytes = kRows * kStepBytes, kInputBytes = kWidth * kStepBytes;
  static constexpr int kRawBytes = 2 * kRows * kRawPitch + 16;
  static constexpr int kMostBytes = 227 * 1024;
  // Stages of activations: one that is multiplied, one that another warpgroup may still multiply, and those ahead.
  static constexpr int kStages = 2 * kWeightBytes + 4 * kInputBytes + kRawBytes <= kMostBytes ? 4 : 3;
  static constexpr int kAhead = kStages - 2;
  static constexpr int kWeights = 0;                            // bfloat16 [2][rows][step]
  static constexpr int kInputs = 2 * kWeightBytes;              // bfloat16 [stages][columns][step]
  static constexpr int kRaw = kInputs + kStages * kInputBytes;  // [2][rows][raw pitch]
  static constexpr int kBytes = kRaw + kRawBytes;
  static_assert(kBytes <= kMostBytes);
  static constexpr int kBlocks = kWidth <= 64 ? 2 : 1;  // that a multiprocessor holds
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define MILLRACE_D8(n)                                                                                        \
  "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3]), "+f"(d[n + 4]), "+f"(d[n + 5]), "+f"(d[n + 6]), \
      "+f"(d[n + 7])
#define MILLRACE_D32(n) MILLRACE_D8(n), MILLRACE_D8(n + 8), MILLRACE_D8(n + 16), MILLRACE_D8(n + 24)

/// d += a b over 16 elements.
__device__ inline void add_product(float (&d)[16], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
      : MILLRACE_D8(0), MILLRACE_D8(8)
      : "l"(a), "l"(b));
}
__device__ inline void add_product(float (&d)[32], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
      : MILLRACE_D32(0)
      : "l"(a), "l"(b));
}
__device__ inline void add_product(float (&d)[64], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, 1, 1, 1, 0, 0;"
      : MILLRACE_D32(0), MILLRACE_D32(32)
      : "l"(a), "l"(b));
}
__device__ inline void add_product(float (&d)[128], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, 1, 1, 1, 0, 0;"
      : MILLRACE_D32(0), MILLRACE_D32(32), MILLRACE_D32(64), MILLRACE_D32(96)
      : "l"(a), "l"(b));
}
#undef MILLRACE_D32
#undef MILLRACE_D8

/// The sums are read by nothing before what comes ahead of this.
template <int n_sums>
__device__ __forceinline__ void pin_sums(float (&d)[n_sums]) {
#pragma unroll
  for (int i = 0; i < n_sums; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Byte k of four int8 that were moved up by 128, as a float: what it was before.
template <int k>
__device__ __forceinline__ float float_of_byte(std::uint32_t bytes) {
  return __uint_as_float(__byte_perm(bytes, 0x4B000000u, 0x7440 + k)) - 8388736.0f;  // 2^23 + 128
}

/// Four int8 to bfloat16: ws * q + minus_wm, rounded twice.
template <bool kMins>
__device__ __forceinline__ uint2 weights_of(std::uint32_t four, float ws, float minus_wm) {
  const std::uint32_t up = four ^ 0x80808080u;
  const auto weight = [&](float q) { return kMins ? __fmaf_rn(ws, q, minus_wm) : ws * q; };
  const __nv_bfloat162 low = __floats2bfloat162_rn(weight(float_of_byte<0>(up)), weight(float_of_byte<1>(up)));
  const __nv_bfloat162 high = __floats2bfloat162_rn(weight(float_of_byte<2>(up)), weight(float_of_byte<3>(up)));
  return make_uint2(*reinterpret_cast<const std::uint32_t*>(&low), *reinterpret_cast<const std::uint32_t*>(&high));
}

/// What a thread copies and decodes: always of the same row of weights.
template <typename T>
struct PromptBlock {
  using Q = typename T::Q;

  std::uint8_t* shared;
  const PromptArgs& args;
  const std::byte* raw_from;
  unsigned misaligned;                 // of the row's first byte, in 16
  unsigned input_at[T::kInputCopies];  // in x, in units of 16 bytes

  __device__ static int place() { return static_cast<int>(threadIdx.x) / 2; }

  __device__ void start_weights(const TileProduct& product, int first_row) {
    const int g = place() % 8, h = place() / 8 % 2, warp = place() / 16;
    const bool pairs = product.up != nullptr;
    const int row = min(first_row + (pairs ? 8 * warp + g : 16 * warp + 2 * g + h), product.rows - 1);
    const unsigned row_bytes = static_cast<unsigned>(args.cols / Q::kUnit) * (Q::kUnit * Q::kBytes / kSegment);
    const std::uint64_t offset = std::uint64_t{static_cast<unsigned>(row)} * row_bytes;
    raw_from = *(pairs && h == 1 ? product.up : product.weight) + offset;
    misaligned = static_cast<unsigned>(offset & 15);  // matrices start at multiples of 256 bytes
  }
  __device__ void start_inputs(int first_column) {
#pragma unroll
    for (int i = 0; i < T::kInputCopies; ++i) {
      const int column = min(first_column + static_cast<int>(threadIdx.x) / 8 + i * (T::kThreads / 8), args.x_rows - 1);
      input_at[i] = static_cast<unsigned>(column) * static_cast<unsigned>(args.cols / 8) + threadIdx.x % 8;
    }
  }

  /// Starts the copy of segment j of the thread's row, every other chunk of it.
  __device__ void copy_raw(int j) const {
    const auto from = reinterpret_cast<std::uintptr_t>(raw_from) + static_cast<unsigned>(j) * Q::kBytes;
    const int part = static_cast<int>(threadIdx.x) % 2;
    const auto* chunks = reinterpret_cast<const uint4*>(from & ~std::uintptr_t{15}) + part;
    auto* to = reinterpret_cast<uint4*>(shared + T::kRaw + (j % 2 * T::kRows + place()) * T::kRawPitch) + part;
#pragma unroll
    for (int c = 0; c < T::kChunks; c += 2) {
      if (c + 2 <= T::kChunks || part == 0) copy_16(to + c, chunks + c);
    }
  }
  /// Starts the copy of step s of the activations.
  __device__ void copy_inputs(int s) const {
    const int column = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
    std::uint8_t* to =
        shared + T::kInputs + s % T::kStages * T::kInputBytes + column * T::kStepBytes + (chunk ^ column % 8) * 16;
    const bool valid = s * T::kStep + 8 * chunk < args.cols;
    const auto* from = reinterpret_cast<const uint4*>(args.x) + s * (T::kStep / 8);
#pragma unroll
    for (int i = 0; i < T::kInputCopies; ++i)
      copy_16(to + i * (T::kThreads / 8) * T::kStepBytes, from + input_at[i], valid);
  }

  /// Decodes the thread's block of step s, whose segment has come.
  __device__ void decode(int s) const {
    const int j = s / T::kStepsOfSegment, b = static_cast<int>(threadIdx.x) % 2;
    const int block = s % T::kStepsOfSegment * 2 + b;  // of the segment
    const std::uint8_t* segment = shared + T::kRaw + (j % 2 * T::kRows + place()) * T::kRawPitch;
    if constexpr (Q::kAlign < 16) segment += (misaligned + static_cast<unsigned>(j) * Q::kBytes) & 15;
    std::uint32_t w[8];
#pragma unroll
    for (int t = 0; t < 4; ++t) Q::pair(segment, block, t, w[t], w[t + 4]);
    float ws[2], minus_wm[2] = {};
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      if (part < T::kParts) {
        ws[part] = group_scale<Q>(segment, T::kParts * block + part);
        if constexpr (Q::kMins) minus_wm[part] = Q::minus_min(segment, T::kParts * block + part);
      } else {
        ws[part] = ws[0], minus_wm[part] = minus_wm[0];
      }
    }
    const bool exists = (s * 2 + b) * 32 < args.cols;
    std::uint8_t* to = shared + T::kWeights + s % 2 * T::kWeightBytes + place() * T::kStepBytes;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint2 first = weights_of<Q::kMins>(w[2 * c], ws[c / 2], minus_wm[c / 2]);
      const uint2 second = weights_of<Q::kMins>(w[2 * c + 1], ws[c / 2], minus_wm[c / 2]);
      *reinterpret_cast<uint4*>(to + ((4 * b + c) ^ place() % 8) * 16) =
          exists ? make_uint4(first.x, first.y, second.x, second.y) : make_uint4(0, 0, 0, 0);
    }
  }
};

/// y = sums, or y += sums, which are in d then. A lane's column 8 n + 2 t + i of rows row and row + 1 is d[4 n + i] and
/// d[4 n + 2 + i].
template <int n_sums>
__device__ inline void finish_prompt(const PromptArgs& args, const TileProduct& product, int row, int first_column,
                                     float (&d)[n_sums]) {
  if (row >= product.rows) return;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const bool two = row + 1 < product.rows, wide = two && product.y_stride % 2 == 0, adds = args.effect == Effect::add;
  float bias[2] = {};
  if (product.bias != nullptr) {
    const auto* from = reinterpret_cast<const float*>(*product.bias);
    bias[0] = from[row], bias[1] = two ? from[row + 1] : 0.0f;
  }
#pragma unroll
  for (int n = 0; n < n_sums / 4; n += 4) {
    float2 old[8] = {};  // what is added to: asked for many at once
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int column = first_column + 8 * (n + k / 2) + 2 * t + k % 2;
      if (!adds || column >= args.x_rows) continue;
      const float* y = product.y + column * product.y_stride + row;
      if (wide) {
        old[k] = *reinterpret_cast<const float2*>(y);
      } else {
        old[k].x = y[0];
        if (two) old[k].y = y[1];
      }
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int column = first_column + 8 * (n + k / 2) + 2 * t + k % 2;
      if (column >= args.x_rows) continue;
      float2 v = make_float2(d[4 * (n + k / 2) + k % 2], d[4 * (n + k / 2) + 2 + k % 2]);
      if (product.bias != nullptr) v.x += bias[0], v.y += bias[1];
      if (adds) v.x = old[k].x + v.x, v.y = old[k].y + v.y;
      d[4 * (n + k / 2) + k % 2] = v.x, d[4 * (n + k / 2) + 2 + k % 2] = v.y;
      float* y = product.y + column * product.y_stride + row;
      if (wide) {
        *reinterpret_cast<float2*>(y) = v;
      } else {
        y[0] = v.x;
        if (two) y[1] = v.y;
      }
    }
  }
#pragma unroll 1
  for (int i = 0; i < args.also.count; ++i) {
#pragma unroll
    for (int k = 0; k < n_sums / 2; ++k) {
      const int column = first_column + 8 * (k / 2) + 2 * t + k % 2;
      if (column >= args.x_rows) continue;
      float* y = args.also.copies[i].y + column * product.y_stride + row;
      if (wide) {
        *reinterpret_cast<float2*>(y) = make_float2(d[k / 2 * 4 + k % 2], d[k / 2 * 4 + 2 + k % 2]);
      } else {
        y[0] = d[k / 2 * 4 + k % 2];
        if (two) y[1] = d[k / 2 * 4 + 2 + k % 2];
      }
    }
  }
}

/// h = gated(gate, up) of the block's 64 rows; to bfloat16 through shared memory, whose operands are done with.
template <typename T, Activation kActivation, int n_sums>
__device__ inline void finish_prompt_pairs(const PromptArgs& args, const TileProduct& product, int first_row,
                                           int first_column, std::uint8_t* shared, const float (&d)[n_sums]) {
  constexpr int kPitch = 64 + 8;
  const int tid = static_cast<int>(threadIdx.x), t = tid % 4, place = tid / 32 * 8 + tid % 32 / 4, rows = product.rows;
  const int row = first_row + place, at = min(row, rows - 1);
  const float gate_bias = product.bias == nullptr ? 0.0f : reinterpret_cast<const float*>(*product.bias)[at];
  const float up_bias = product.up_bias == nullptr ? 0.0f : reinterpret_cast<const float*>(*product.up_bias)[at];
  auto* values = reinterpret_cast<__nv_bfloat16*>(shared);
#pragma unroll
  for (int k = 0; k < n_sums / 2; ++k) {
    const int column = k / 2 * 8 + 2 * t + k % 2;
    float gate = d[k / 2 * 4 + k % 2], up = d[k / 2 * 4 + 2 + k % 2];
    if (product.bias != nullptr) gate += gate_bias;
    if (product.up_bias != nullptr) up += up_bias;
    const float h = gated<kActivation>(gate, up, args.gate);
    values[column * kPitch + place] = __float2bfloat16_rn(h);
    if (product.y != nullptr && row < rows && first_column + column < args.x_rows)
      product.y[(first_column + column) * product.y_stride + row] = h;
  }
  if (args.y_bf16 == nullptr) return;
  __syncthreads();
  const int part = tid % 8 * 8;  // of a column's 64 rows
  for (int column = tid / 8; column < min(T::kWidth, args.x_rows - first_column); column += T::kThreads / 8) {
    const __nv_bfloat16* from = values + column * kPitch + part;
    const std::int64_t at = std::int64_t{first_column + column} * args.y_bf16_cols + first_row + part;
    const bool whole = first_row + part + 8 <= rows && rows % 8 == 0 && args.y_bf16_cols % 8 == 0;
#pragma unroll 1
    for (int copy = -1; copy < args.also.count; ++copy) {
      auto* const to = at + (copy < 0 ? args.y_bf16 : reinterpret_cast<__nv_bfloat16*>(args.also.copies[copy].y_bf16));
      if (whole) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int i = 0; i < 8 && first_row + part + i < rows; ++i) to[i] = from[i];
      }
    }
  }
}
#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// A kernel an activation: even code that is not run makes a kernel slower.
template <typename T, Activation kActivation>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) prompt_kernel(const __grid_constant__ PromptArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const int tid = static_cast<int>(threadIdx.x);
  allow_successor();
  int index = 0, row_tile = static_cast<int>(blockIdx.y);
  while (row_tile >= args.products[index].tiles_end) ++index;
  if (index > 0) row_tile -= args.products[index - 1].tiles_end;
  const TileProduct& product = args.products[index];
  const bool pairs = product.up != nullptr;
  const int first_row = row_tile * (pairs ? T::kRows / 2 : T::kRows);
  const int first_column = static_cast<int>(blockIdx.x) * T::kWidth;
  PromptBlock<T> block{shared, args, nullptr, 0, {}};
  block.start_weights(product, first_row);
  block.copy_raw(0);
  wait_for_predecessor();  // weights are no kernel's
  block.start_inputs(first_column);

  const int steps = (args.cols + T::kStep - 1) / T::kStep;
  const int segments = (args.cols + kSegment - 1) / kSegment;
#pragma unroll
  for (int s = 0; s < T::kAhead; ++s) {
    block.copy_inputs(s);  // zeros beyond the end
    copies_commit();
  }
  copies_wait<T::kAhead - 1>();
  __syncwarp();  // a warp's rows are copied and decoded by itself
  block.decode(0);

  const int warpgroup = tid / 128;
  const std::uint64_t weights = operand_at(shared + T::kWeights + warpgroup * 64 * T::kStepBytes);
  const std::uint64_t inputs = operand_at(shared + T::kInputs);
  float d[T::kWidth / 2] = {};
  for (int s = 0; s < steps; ++s) {
    // All threads' stores and copies are visible to the tensor core, and all its reads of two steps before are over.
    copies_wait<T::kAhead - 1>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const std::uint64_t a = weights + static_cast<unsigned>(s % 2 * (T::kWeightBytes / 16));
    const std::uint64_t b = inputs + static_cast<unsigned>(s % T::kStages * (T::kInputBytes / 16));
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 4; ++k) add_product(d, a + 2 * k, b + 2 * k);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    block.copy_inputs(s + T::kAhead);
    if (s % T::kStepsOfSegment == 0 && s / T::kStepsOfSegment + 1 < segments)
      block.copy_raw(s / T::kStepsOfSegment + 1);
    copies_commit();
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    if (s + 1 < steps) block.decode(s + 1);
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  pin_sums(d);
  copies_wait<0>();
  if (pairs) {
    __syncthreads();
    finish_prompt_pairs<T, kActivation>(args, product, first_row, first_column, shared, d);
  } else {
    finish_prompt(args, product, first_row + tid / 32 * 16 + tid % 32 / 4 * 2, first_column, d);
  }
#endif  // __CUDA_ARCH_FEAT_SM90_ALL
}

template <typename T, Activation kActivation>
cudaError_t launch_prompt_kernel(const PromptArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((args.x_rows + T::kWidth - 1) / T::kWidth),
                  static_cast<unsigned>(args.products[2].tiles_end));
  return launch_large(prompt_kernel<T, kActivation>, grid, dim3(T::kThreads), static_cast<std::size_t>(T::kBytes),
                      stream, 1, args);
}

/// Dense layers have SiLU, with limits or without, or GELU between gate and up; with another there is no product of
/// prompts.
template <DType kDType, int kWidth>
cudaError_t launch_prompt_width(const PromptArgs& args, cudaStream_t stream) {
  using T = PromptTile<kDType, kWidth>;
  if (args.effect != Effect::gated || args.gate.activation == Activation::silu)
    return launch_prompt_kernel<T, Activation::silu>(args, stream);
  if (args.gate.activation == Activation::gelu) return launch_prompt_kernel<T, Activation::gelu>(args, stream);
  return cudaErrorInvalidValue;
}

template <DType kDType>
cudaError_t launch_prompt(int width, const PromptArgs& args, cudaStream_t stream) {
  switch (width) {
    case 256:
      return launch_prompt_width<kDType, 256>(args, stream);
    case 128:
      return launch_prompt_width<kDType, 128>(args, stream);
    default:
      return launch_prompt_width<kDType, 32>(args, stream);
  }
}

template <DType kDType>
int prompt_registers() {
  cudaFuncAttributes attributes = {};
  const auto* kernel = reinterpret_cast<const void*>(prompt_kernel<PromptTile<kDType, 256>, Activation::silu>);
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess ? attributes.numRegs : 0;
}

}  // namespace millrace::kernels::cuda

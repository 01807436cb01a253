// matmul_prompt(): which tile, and the launches.
#include <cstdint>

#include "kernels/cuda/matmul_launch.cuh"
#include "kernels/cuda/matmul_prompt_launch.cuh"
#include "kernels/gpu/plainer.h"

namespace millrace::kernels::cuda {

int prompt_forced_width = 0;

namespace {

/// The width whose blocks end first (bits do not depend on it), by what a block takes beside its like, as measured on
/// an H200 with Q4_K: narrow ones wait for their weights.
int choose_width(int x_rows, int row_tiles) {
  if (prompt_forced_width != 0) return prompt_forced_width;
  int best = 0;
  std::int64_t least = INT64_MAX;
  for (const int width : kPromptWidths) {
    const int blocks = row_tiles * div_up(x_rows, width), alone = multiprocessor_count();
    const std::int64_t time = width == 256      ? 100 * std::int64_t{div_up(blocks, alone)}
                              : width == 128    ? 77 * std::int64_t{div_up(blocks, alone)}
                              : blocks <= alone ? 45
                                                : 107 * std::int64_t{div_up(blocks, 2 * alone)};
    if (time < least) least = time, best = width;
  }
  return best;
}

/// The tile that ends first (bits do not depend on it), as measured on an H200 with code for 8.0 and Q4_K: large ones
/// where there are enough of them for the multiprocessors.
PromptInt8Shape choose_int8_shape(int x_rows, int weight_rows) {
  const PromptInt8Shape large_tile = has_small_blocks() ? PromptInt8Shape::tile_64x64 : PromptInt8Shape::tile_128x128;
  if (prompt_forced_width >= 128) return large_tile;
  if (prompt_forced_width != 0)
    return prompt_forced_width >= 64 ? PromptInt8Shape::tile_64x64 : PromptInt8Shape::tile_32x32;
  const int multiprocessors = multiprocessor_count();
  if (x_rows <= 32 || (x_rows <= 64 && weight_rows <= 64 * multiprocessors)) return PromptInt8Shape::tile_32x32;
  const int large = div_up(weight_rows, 128) * div_up(x_rows, 128);
  return 4 * large >= 3 * multiprocessors && x_rows > 64 ? large_tile : PromptInt8Shape::tile_64x64;
}

cudaError_t launch_int8(const MatmulCall& call, PromptArgs& args, int weight_rows, cudaStream_t stream) {
  args.rounded = call.x_rounded;
  args.segments = static_cast<std::int32_t>(PromptInt8::segments(call.cols));
  args.padded_rows = static_cast<std::int32_t>(PromptInt8::padded_rows(call.x_rows));
  const PromptInt8Shape shape = choose_int8_shape(call.x_rows, weight_rows);
  switch (call.products[0].weight.dtype) {
    case DType::q2_k:
      return launch_prompt_int8<DType::q2_k>(shape, args, stream);
    case DType::q3_k:
      return launch_prompt_int8<DType::q3_k>(shape, args, stream);
    case DType::q4_k:
      return launch_prompt_int8<DType::q4_k>(shape, args, stream);
    case DType::q5_k:
      return launch_prompt_int8<DType::q5_k>(shape, args, stream);
    case DType::q6_k:
      return launch_prompt_int8<DType::q6_k>(shape, args, stream);
    case DType::iq4_xs:
      return launch_prompt_int8<DType::iq4_xs>(shape, args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

/// Whether the current device runs the products of bfloat16, which were built for it.
bool has_warpgroups() {
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
         minor == 0 && prompt_registers<DType::q4_k>() > 100;
}

}  // namespace

PromptProducts prompt_products() {
  if (gpu::does_without(gpu::Family::prompt_products)) return PromptProducts::none;
  if (has_warpgroups()) return PromptProducts::bf16;
  return has_large_blocks() ? PromptProducts::none : PromptProducts::int8;
}

cudaError_t matmul_prompt(const MatmulCall& call, cudaStream_t stream) {
  if (call.x_rows == 0) return cudaSuccess;
  const int alone = call.effect == Effect::gated ? 2 : 1;
  if (call.count > kMostTileProducts || (call.also.count > 0 && call.count > alone)) return cudaErrorInvalidValue;
  PromptArgs args;
  args.effect = call.effect;
  args.gate = gate_of(call.activation, call.limit);
  args.cols = call.cols;
  args.x_rows = call.x_rows;
  args.x = reinterpret_cast<const __nv_bfloat16*>(call.x_bf16);
  args.y_bf16 = reinterpret_cast<__nv_bfloat16*>(call.y_bf16);
  args.y_bf16_cols = call.y_bf16_cols > 0 ? call.y_bf16_cols : call.products[0].weight.rows;
  args.also = call.also;
  const DType dtype = call.products[0].weight.dtype;
  for (int i = 1; i < call.count; ++i)
    if (call.products[i].weight.dtype != dtype) return cudaErrorInvalidValue;
  const int weight_rows = fill_products(call, args.products);
  if (call.x_rounded.q != nullptr) return launch_int8(call, args, weight_rows, stream);
  const int width = choose_width(call.x_rows, count_row_tiles(args.products, kPromptRows, kPromptRows / 2));
  return launch_for(dtype, [&](auto of) { return launch_prompt<decltype(of)::value>(width, args, stream); });
}

}  // namespace millrace::kernels::cuda

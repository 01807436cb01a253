// matmul_prompt(): which tile, and the launches.
#include <cstdint>

#include "kernels/cuda/matmul_launch.cuh"
#include "kernels/cuda/matmul_prompt_launch.cuh"

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

}  // namespace

bool has_prompt_products() {
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
         minor == 0 && prompt_registers<DType::q4_k>() > 100;
}

cudaError_t matmul_prompt(const MatmulCall& call, cudaStream_t stream) {
  if (call.x_rows == 0) return cudaSuccess;
  const int alone = call.effect == Effect::gated ? 2 : 1;
  if (call.count > kMostTileProducts || (call.also.count > 0 && call.count > alone)) return cudaErrorInvalidValue;
  PromptArgs args;
  args.effect = call.effect;
  args.activation = call.activation;
  args.cols = call.cols;
  args.x_rows = call.x_rows;
  args.x = reinterpret_cast<const __nv_bfloat16*>(call.x_bf16);
  args.y_bf16 = reinterpret_cast<__nv_bfloat16*>(call.y_bf16);
  args.y_bf16_cols = call.y_bf16_cols > 0 ? call.y_bf16_cols : call.products[0].weight.rows;
  args.also = call.also;
  const DType dtype = call.products[0].weight.dtype;
  for (int i = 1; i < call.count; ++i)
    if (call.products[i].weight.dtype != dtype) return cudaErrorInvalidValue;
  fill_products(call, args.products);
  const int width = choose_width(call.x_rows, count_row_tiles(args.products, kPromptRows, kPromptRows / 2));
  return launch_for(dtype, [&](auto of) { return launch_prompt<decltype(of)::value>(width, args, stream); });
}

}  // namespace millrace::kernels::cuda

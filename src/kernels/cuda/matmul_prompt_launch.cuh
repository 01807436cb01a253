// The launches of matmul_prompt.cu, one function a quantized dtype; matmul_prompt_*.cu define them with
// matmul_prompt.cuh's kernel, a few dtypes a file, so that files compile side by side.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/matmul_args.cuh"

namespace millrace::kernels::cuda {

struct PromptArgs {
  TileProduct products[kMostTileProducts];
  Effect effect = Effect::store;
  Gate gate;
  std::int32_t cols = 0, x_rows = 0;
  const __nv_bfloat16* x = nullptr;
  // In place of x where products are of int8; what it has is of args.cols columns.
  PromptInt8 rounded;
  std::int32_t segments = 0, padded_rows = 0;
  __nv_bfloat16* y_bf16 = nullptr;  // gated: written if set
  std::int32_t y_bf16_cols = 0;     // as in MatmulCall, but never 0
  ProductCopies also;
};

constexpr int kPromptRows = 128;                 // of weights, in a tile
constexpr int kPromptWidths[] = {256, 128, 32};  // rows of x, likewise

/// width: one of kPromptWidths. The products' tiles have been counted.
template <DType kDType>
cudaError_t launch_prompt(int width, const PromptArgs& args, cudaStream_t stream);
/// Weight rows by rows of x of a tile.
enum class PromptInt8Shape : std::uint8_t { tile_128x128, tile_64x64, tile_32x32 };
/// By int8. Counts the tiles itself. Defined where Quads<kDType>::kIntegers.
template <DType kDType>
cudaError_t launch_prompt_int8(PromptInt8Shape shape, const PromptArgs& args, cudaStream_t stream);
/// Registers of the widest kernel for kDType: few where it was not built for this device and is empty.
template <DType kDType>
int prompt_registers();

}  // namespace millrace::kernels::cuda

// The launches of matmul_thin.cuh's kernel, one function a quantized dtype; matmul_thin_*.cu define them, a few dtypes
// a file, so that files compile side by side.
#pragma once

#include "kernels/cuda/matmul_launch.cuh"

namespace millrace::kernels::cuda {

/// Tiles: weight rows by rows of x.
enum class ThinShape : std::uint8_t { thin_32x8, thin_64x8, thin_32x16, thin_64x16, thin_128x32 };
constexpr int kThinWidth[] = {8, 8, 16, 16, 32};  // rows of x of a tile
constexpr int kThinShapes = 5;

/// Shared memory of a block at most.
constexpr int kThinBytes = 227 * 1024;

/// max_tiles: of rows of x. Pairs: thin_64x8, thin_64x16 or thin_128x32.
template <DType kDType>
cudaError_t launch_thin_shape(ThinShape shape, const TileArgs& args, int max_tiles, cudaStream_t stream);

}  // namespace millrace::kernels::cuda

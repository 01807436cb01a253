// The launches of matmul.cu, one function a quantized dtype; matmul_*.cu define them by including matmul_launch_impl's
// kernels, a few dtypes a file, so that files compile side by side.
#pragma once

#include "kernels/cuda/matmul_args.cuh"

namespace millrace::kernels::cuda {

/// Which kernel, with which tile (weight rows by rows of x).
enum class Shape : std::uint8_t { tile_128x128, tile_128x64, tile_128x32, slim_32x32, slim_32x16, group_128x128 };
constexpr int kShapeWidth[] = {128, 64, 32, 32, 16, 128};  // rows of x of a tile

/// Of the current device. Asked of the driver once a device.
int multiprocessor_count();
/// Registers of Shape::group_128x128's kernel for kDType: few where it was not built for this device and is empty.
template <DType kDType>
int group_registers();

/// max_tiles: tiles of rows of x, of the shape's width (experts: an upper bound).
template <DType kDType>
cudaError_t launch_shape(Shape shape, const TileArgs& args, int max_tiles, cudaStream_t stream);

}  // namespace millrace::kernels::cuda

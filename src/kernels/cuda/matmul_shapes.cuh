// launch_shape of matmul_launch.cuh: every kernel of a dtype. Included by the files that instantiate it.
#pragma once

#include "kernels/cuda/matmul_launch.cuh"
#include "kernels/cuda/matmul_slim.cuh"
#include "kernels/cuda/matmul_tile.cuh"

namespace millrace::kernels::cuda {

template <DType kDType>
cudaError_t launch_shape(Shape shape, const TileArgs& args, int max_tiles, cudaStream_t stream) {
  switch (shape) {
    case Shape::tile_128x128:
      return launch_tiles<Tile<kDType, 128, 128, 2, 4>, 1>(args, max_tiles, stream);
    case Shape::tile_128x32:
      return launch_tiles<Tile<kDType, 128, 32, 2, 2>, 2>(args, max_tiles, stream);
    case Shape::slim_32x32:
      return launch_slim<Slim<kDType, 32>>(args, max_tiles, stream);
    case Shape::slim_32x16:
      return launch_slim<Slim<kDType, 16>>(args, max_tiles, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace millrace::kernels::cuda

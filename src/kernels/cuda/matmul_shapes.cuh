// launch_shape of matmul_launch.cuh: every kernel of a dtype. Included by the files that instantiate it.
#pragma once

#include "kernels/cuda/matmul_launch.cuh"
#include "kernels/cuda/matmul_slim.cuh"
#include "kernels/cuda/matmul_tile.cuh"
#include "kernels/cuda/matmul_wgmma.cuh"

namespace millrace::kernels::cuda {

template <DType kDType, int kWidth>
cudaError_t launch_slims(const TileArgs& args, int max_tiles, cudaStream_t stream) {
  const int multiprocessors = multiprocessor_count();
  if (args.products[0].up != nullptr)
    return launch_slim<Slim<kDType, kWidth, 2>>(args, max_tiles, multiprocessors, stream);
  return launch_slim<Slim<kDType, kWidth, 1>>(args, max_tiles, multiprocessors, stream);
}

template <DType kDType>
cudaError_t launch_shape(Shape shape, const TileArgs& args, int max_tiles, cudaStream_t stream) {
  switch (shape) {
    case Shape::tile_128x128:
      return launch_tiles<WarpTile<kDType, 128, 128, 2, 4>, 1>(args, max_tiles, stream);
    case Shape::tile_128x32:
      return launch_tiles<WarpTile<kDType, 128, 32, 2, 2>, 2>(args, max_tiles, stream);
    case Shape::slim_32x32:
      return launch_slims<kDType, 32>(args, max_tiles, stream);
    case Shape::slim_32x16:
      return launch_slims<kDType, 16>(args, max_tiles, stream);
    case Shape::group_128x128:
      if constexpr (!Quads<kDType>::kHalves) return launch_groups<kDType>(args, max_tiles, stream);
      break;
    case Shape::tile_128x64:
      return launch_tiles<WarpTile<kDType, 128, 64, 2, 4>, 2>(args, max_tiles, stream);
    case Shape::tile_64x128:
      return launch_tiles<WarpTile<kDType, 64, 128, 1, 8, 2>, 1>(args, max_tiles, stream);
    case Shape::tile_64x64:
      if constexpr (SmallTile<kDType>::kBytes <= kSmallBlockShared)
        return launch_tiles<SmallTile<kDType>, 1>(args, max_tiles, stream);
      break;
  }
  return cudaErrorInvalidValue;
}

template <DType kDType>
int group_registers() {
  cudaFuncAttributes attributes = {};
  const auto* kernel = reinterpret_cast<const void*>(group_kernel<GroupTile<kDType>>);
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess ? attributes.numRegs : 0;
}

}  // namespace millrace::kernels::cuda

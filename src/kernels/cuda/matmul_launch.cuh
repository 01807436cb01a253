// The launches of matmul.cu, one function a quantized dtype; matmul_*.cu define them by including matmul_launch_impl's
// kernels, a few dtypes a file, so that files compile side by side.
#pragma once

#include <type_traits>

#include "kernels/cuda/matmul_args.cuh"

namespace millrace::kernels::cuda {

/// Which kernel, with which tile (weight rows by rows of x).
enum class Shape : std::uint8_t {
  tile_128x128,
  tile_128x64,
  tile_128x32,
  slim_32x32,
  slim_32x16,
  group_128x128,
  tile_64x128,
  tile_64x64  // where has_small_blocks(), of the dtypes for which it is small enough
};
constexpr int kShapes = 8;
constexpr int kShapeWidth[kShapes] = {128, 64, 32, 32, 16, 128, 128, 64};  // rows of x of a tile

/// Whether the code that the current device runs has the tiles for blocks of 227 KiB of shared memory, which is that
/// for compute capability 9.0. All other code has tile_64x128 in their place, and thin shapes whose blocks fit into the
/// 99 KiB of cards of 8.6, 8.9 and 12.0; its kernels of the others are empty.
bool has_large_blocks();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define MILLRACE_LARGE_BLOCKS 1
#else
#define MILLRACE_LARGE_BLOCKS 0
#endif

constexpr int div_up(int a, int b) { return (a + b - 1) / b; }

/// Registers of Shape::group_128x128's kernel for kDType: few where it was not built for this device and is empty.
template <DType kDType>
int group_registers();

/// A call's products as kernels with tiles take them; a pair's two are one. Returns the rows of all weights.
int fill_products(const MatmulCall& call, TileProduct (&products)[kMostTileProducts]);

/// launch(std::integral_constant<DType, dtype>()), whatever quantized dtype that is.
template <typename Launch>
cudaError_t launch_for(DType dtype, const Launch& launch) {
  switch (dtype) {
#define MILLRACE_CASE(name) \
  case DType::name:         \
    return launch(std::integral_constant<DType, DType::name>());
    MILLRACE_CASE(q4_0)
    MILLRACE_CASE(q4_1)
    MILLRACE_CASE(q5_0)
    MILLRACE_CASE(q5_1)
    MILLRACE_CASE(q8_0)
    MILLRACE_CASE(q2_k)
    MILLRACE_CASE(q3_k)
    MILLRACE_CASE(q4_k)
    MILLRACE_CASE(q5_k)
    MILLRACE_CASE(q6_k)
    MILLRACE_CASE(iq4_nl)
    MILLRACE_CASE(iq4_xs)
    MILLRACE_CASE(mxfp4)
    MILLRACE_CASE(nvfp4)
    MILLRACE_CASE(q1_0)
    MILLRACE_CASE(q2_0)
    MILLRACE_CASE(iq2_xxs)
    MILLRACE_CASE(iq2_xs)
    MILLRACE_CASE(iq2_s)
    MILLRACE_CASE(iq3_xxs)
    MILLRACE_CASE(iq3_s)
    MILLRACE_CASE(iq1_s)
    MILLRACE_CASE(iq1_m)
    MILLRACE_CASE(tq1_0)
    MILLRACE_CASE(tq2_0)
#undef MILLRACE_CASE
    default:
      return cudaErrorInvalidValue;
  }
}

/// max_tiles: tiles of rows of x, of the shape's width (experts: an upper bound).
template <DType kDType>
cudaError_t launch_shape(Shape shape, const TileArgs& args, int max_tiles, cudaStream_t stream);

}  // namespace millrace::kernels::cuda

// Matrix products of many rows with Q1_0 and Q2_0 weights.
#include "kernels/cuda/matmul_shapes.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_shape<DType::q1_0>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::q2_0>(Shape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

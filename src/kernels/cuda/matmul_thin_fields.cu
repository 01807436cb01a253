// Matrix products of few rows with Q1_0 and Q2_0 weights.
#include "kernels/cuda/matmul_thin.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_thin_shape<DType::q1_0>(ThinShape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_thin_shape<DType::q2_0>(ThinShape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

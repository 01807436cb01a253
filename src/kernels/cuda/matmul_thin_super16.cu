// Matrix products of few rows with Q2_K, Q3_K and Q6_K weights.
#include "kernels/cuda/matmul_thin.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_thin_shape<DType::q2_k>(ThinShape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_thin_shape<DType::q3_k>(ThinShape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_thin_shape<DType::q6_k>(ThinShape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

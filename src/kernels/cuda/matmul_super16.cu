// Matrix products of many rows with Q2_K, Q3_K and Q6_K weights.
#include "kernels/cuda/matmul_shapes.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_shape<DType::q2_k>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::q3_k>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::q6_k>(Shape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

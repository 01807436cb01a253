// Matrix products of few rows with Q4_K, Q5_K and IQ4_XS weights.
#include "kernels/cuda/matmul_thin.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_thin_shape<DType::q4_k>(ThinShape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_thin_shape<DType::q5_k>(ThinShape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_thin_shape<DType::iq4_xs>(ThinShape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

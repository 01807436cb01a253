// Matrix products of few rows with Q5_0, Q5_1 and Q8_0 weights.
#include "kernels/cuda/matmul_thin.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_thin_shape<DType::q5_0>(ThinShape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_thin_shape<DType::q5_1>(ThinShape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_thin_shape<DType::q8_0>(ThinShape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

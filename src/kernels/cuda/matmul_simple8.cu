// Matrix products of many rows with Q5_0, Q5_1 and Q8_0 weights.
#include "kernels/cuda/matmul_shapes.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_shape<DType::q5_0>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::q5_1>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::q8_0>(Shape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

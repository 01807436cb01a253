// Matrix products of many rows with TQ1_0 and TQ2_0 weights.
#include "kernels/cuda/matmul_shapes.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_shape<DType::tq1_0>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::tq2_0>(Shape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

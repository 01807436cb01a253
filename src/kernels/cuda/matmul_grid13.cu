// Matrix products of many rows with IQ1_S, IQ1_M, IQ3_XXS and IQ3_S weights.
#include "kernels/cuda/matmul_shapes.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_shape<DType::iq1_s>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::iq1_m>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::iq3_xxs>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::iq3_s>(Shape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

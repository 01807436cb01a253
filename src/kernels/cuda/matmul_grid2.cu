// Matrix products of many rows with IQ2_XXS, IQ2_XS and IQ2_S weights.
#include "kernels/cuda/matmul_shapes.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_shape<DType::iq2_xxs>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::iq2_xs>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::iq2_s>(Shape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

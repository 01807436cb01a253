// Matrix products of many rows with Q4_K, Q5_K and IQ4_XS weights.
#include "kernels/cuda/matmul_shapes.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_shape<DType::q4_k>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::q5_k>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::iq4_xs>(Shape, const TileArgs&, int, cudaStream_t);

template int group_registers<DType::q4_k>();

}  // namespace millrace::kernels::cuda

// Matrix products of many rows with Q4_0, Q4_1, IQ4_NL, MXFP4 and NVFP4 weights.
#include "kernels/cuda/matmul_shapes.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_shape<DType::q4_0>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::q4_1>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::iq4_nl>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::mxfp4>(Shape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_shape<DType::nvfp4>(Shape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

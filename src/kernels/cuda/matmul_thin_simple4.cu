// Matrix products of few rows with Q4_0, Q4_1, IQ4_NL, MXFP4 and NVFP4 weights.
#include "kernels/cuda/matmul_thin.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_thin_shape<DType::q4_0>(ThinShape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_thin_shape<DType::q4_1>(ThinShape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_thin_shape<DType::iq4_nl>(ThinShape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_thin_shape<DType::mxfp4>(ThinShape, const TileArgs&, int, cudaStream_t);
template cudaError_t launch_thin_shape<DType::nvfp4>(ThinShape, const TileArgs&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

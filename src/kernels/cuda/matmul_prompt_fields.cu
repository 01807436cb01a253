// Products of prompts' rows with weights of a few dtypes: see matmul_prompt.cuh.
#include "kernels/cuda/matmul_prompt.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_prompt<DType::q1_0>(int, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt<DType::q2_0>(int, const PromptArgs&, cudaStream_t);

}  // namespace millrace::kernels::cuda

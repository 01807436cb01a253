// Products of prompts' rows with TQ1_0 and TQ2_0 weights: see matmul_prompt.cuh.
#include "kernels/cuda/matmul_prompt.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_prompt<DType::tq1_0>(int, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt<DType::tq2_0>(int, const PromptArgs&, cudaStream_t);

}  // namespace millrace::kernels::cuda

// Products of prompts' rows with IQ1_S, IQ1_M, IQ3_XXS and IQ3_S weights: see matmul_prompt.cuh.
#include "kernels/cuda/matmul_prompt.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_prompt<DType::iq1_s>(int, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt<DType::iq1_m>(int, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt<DType::iq3_xxs>(int, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt<DType::iq3_s>(int, const PromptArgs&, cudaStream_t);

}  // namespace millrace::kernels::cuda

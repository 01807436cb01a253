// Products of prompts' rows with IQ2_XXS, IQ2_XS and IQ2_S weights: see matmul_prompt.cuh.
#include "kernels/cuda/matmul_prompt.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_prompt<DType::iq2_xxs>(int, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt<DType::iq2_xs>(int, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt<DType::iq2_s>(int, const PromptArgs&, cudaStream_t);

}  // namespace millrace::kernels::cuda

// Products of prompts' rows with weights of a few dtypes: see matmul_prompt.cuh.
#include "kernels/cuda/matmul_prompt.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_prompt<DType::q4_k>(int, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt<DType::q5_k>(int, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt<DType::iq4_xs>(int, const PromptArgs&, cudaStream_t);

template int prompt_registers<DType::q4_k>();

}  // namespace millrace::kernels::cuda

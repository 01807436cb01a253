// Products of prompts' rows by int8: see matmul_prompt_int8.cuh.
#include "kernels/cuda/matmul_prompt_int8.cuh"

namespace millrace::kernels::cuda {

template cudaError_t launch_prompt_int8<DType::q2_k>(PromptInt8Shape, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt_int8<DType::q3_k>(PromptInt8Shape, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt_int8<DType::q4_k>(PromptInt8Shape, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt_int8<DType::q5_k>(PromptInt8Shape, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt_int8<DType::q6_k>(PromptInt8Shape, const PromptArgs&, cudaStream_t);
template cudaError_t launch_prompt_int8<DType::iq4_xs>(PromptInt8Shape, const PromptArgs&, cudaStream_t);

}  // namespace millrace::kernels::cuda

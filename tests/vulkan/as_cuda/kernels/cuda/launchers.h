// The launches of kernels/gpu as tests of CUDA's launchers call them: see cuda_runtime_api.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/gpu/delta_chunks.h"
#include "kernels/gpu/delta_step.h"
#include "kernels/gpu/draw.h"
#include "kernels/gpu/gates.h"
#include "kernels/gpu/heads.h"
#include "kernels/gpu/launches.h"
#include "kernels/gpu/ops.h"
#include "kernels/gpu/recurrent.h"

namespace millrace::kernels::cuda {

using namespace millrace::kernels::gpu;  // NOLINT(google-build-using-namespace): as CUDA's header names them one by one

// kernels has some of these names, too.
using gpu::kAttentionChunk;
using gpu::q8_at;
using gpu::q8_bytes;

/// A null argument: no pointer, or no stream.
struct Nothing {
  template <typename T>
  operator T*() const {  // NOLINT(google-explicit-constructor)
    return nullptr;
  }
  operator device::StreamRef() const { return {}; }  // NOLINT(google-explicit-constructor)
};
inline Nothing argument(std::nullptr_t) { return {}; }
template <typename T>
const T& argument(const T& value) {
  return value;
}

#define MR_AS_CUDA(name)                                               \
  template <typename... Arguments>                                     \
  cudaError_t name(const Arguments&... arguments) {                    \
    return test::as_cuda::error_of(gpu::name(argument(arguments)...)); \
  }
MR_AS_CUDA(matvec)
MR_AS_CUDA(matmul)
MR_AS_CUDA(matvec_experts)
MR_AS_CUDA(matmul_experts)
MR_AS_CUDA(rms_norm)
MR_AS_CUDA(quantize_q8)
MR_AS_CUDA(add)
MR_AS_CUDA(gate_mul)
MR_AS_CUDA(gate_rows)
MR_AS_CUDA(scale)
MR_AS_CUDA(add_scaled)
MR_AS_CUDA(multiply)
MR_AS_CUDA(gather_rows)
MR_AS_CUDA(rope_store)
MR_AS_CUDA(attention)
MR_AS_CUDA(candidates)
MR_AS_CUDA(draw)
MR_AS_CUDA(route)
MR_AS_CUDA(sort_entries)
MR_AS_CUDA(combine_experts)
MR_AS_CUDA(convolve)
MR_AS_CUDA(delta_rule)
MR_AS_CUDA(scan)
MR_AS_CUDA(delta_step)
MR_AS_CUDA(delta_chunks)
MR_AS_CUDA(time_step)
MR_AS_CUDA(l2_norm_heads)
MR_AS_CUDA(rms_norm_groups)
MR_AS_CUDA(gated_norm)
MR_AS_CUDA(sigmoid_gate)
MR_AS_CUDA(sigmoid_gate_rows)
MR_AS_CUDA(pick_heads)
MR_AS_CUDA(place_columns)
MR_AS_CUDA(activate)
MR_AS_CUDA(activate_entries)
MR_AS_CUDA(xielu)
MR_AS_CUDA(largest)
MR_AS_CUDA(combine)
MR_AS_CUDA(softcap)
MR_AS_CUDA(scale_by)
MR_AS_CUDA(temper)
MR_AS_CUDA(choose)
MR_AS_CUDA(to_bf16)
#undef MR_AS_CUDA

inline cudaError_t rms_norm(const float* x, const std::int32_t* x_index, const std::byte* const* weight,
                            std::int32_t rows, std::int32_t cols, float eps, float* out, Q8 q8, std::nullptr_t) {
  return test::as_cuda::error_of(gpu::rms_norm(x, x_index, weight, rows, cols, eps, out, q8, {}));
}
inline cudaError_t embed(const Matrix& table, const std::int32_t* tokens, std::int32_t rows, std::int32_t cols,
                         float* out, std::nullptr_t) {
  return test::as_cuda::error_of(gpu::embed(table, tokens, rows, cols, out, {}));
}

}  // namespace millrace::kernels::cuda

// The contract of draws from all of a row's logits: the token that kernels::draw() picks, with its bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/draw.h"

namespace millrace::kernels::cuda {

/// drawn[r]: by rules[r] from row r of logits [rows, vocab]; -1 where the rule's temperature is 0. `found`: what
/// candidates() found in the rows. Errors: invalid value (vocab > kMostVocab).
cudaError_t draw(const float* logits, std::int32_t rows, std::int32_t vocab, const DrawRule* rules,
                 const Candidates* found, std::int32_t* drawn, cudaStream_t stream);

}  // namespace millrace::kernels::cuda

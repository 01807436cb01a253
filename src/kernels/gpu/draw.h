// The contract of draws from all of a row's logits: the token that kernels::draw() picks, with its bits.
#pragma once

#include <cstdint>

#include "kernels/draw.h"
#include "kernels/gpu/ops.h"

namespace millrace::kernels::gpu {

/// drawn[r]: by rules[r] from row r of logits [rows, vocab]; -1 where the rule's temperature is 0. `found`: what
/// candidates() found in the rows. Errors: invalid value (vocab > kMostVocab).
Status draw(const float* logits, std::int32_t rows, std::int32_t vocab, const DrawRule* rules, const Candidates* found,
            std::int32_t* drawn, device::StreamRef stream);

}  // namespace millrace::kernels::gpu

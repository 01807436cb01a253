// The scale search of the K-quants that Millrace writes. Used by encode_row; not for other rooms.
// Both functions minimise the plain squared error over the super-block and never fail. Thread-safety: pure functions.
#pragma once

#include "tensor/blocks.h"

namespace millrace {

/// x: [256], 16-byte aligned, finite, magnitudes at most kLargestEncodable.
void encode_q4_k(const float* x, BlockQ4_K& out);
void encode_q6_k(const float* x, BlockQ6_K& out);

/// No block reaches further (63 * 15 * the largest float16); inputs are clamped to it so that squares stay finite.
constexpr float kLargestEncodable = 63.0f * 15.0f * 65504.0f;

}  // namespace millrace

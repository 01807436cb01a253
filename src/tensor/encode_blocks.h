// The encoders of quantized types whose levels are searched for, once for each width of the processor's vectors. All of
// them write the same bytes on every machine. Used by encode_row(); not for other rooms. Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace millrace {

constexpr float kLargestHalf = 65504.0f;
/// No block reaches further (63 * 15 * the largest float16); inputs are clamped to it so that squares stay finite.
constexpr float kLargestEncodable = 63.0f * 15.0f * kLargestHalf;

/// Encodes whole blocks. dtype: a quantized one but Q8_0. x: [count], count a
/// multiple of the dtype's block; anything, NaN counts as 0. importance: [count], what the square of an element's error
/// counts, finite and not negative, or null for all alike. out: the blocks, any alignment.
using EncodeBlocks = void (*)(DType dtype, const float* x, const float* importance, std::int64_t count, std::byte* out);

namespace plain {
void encode_blocks(DType dtype, const float* x, const float* importance, std::int64_t count, std::byte* out);
}
#if defined(__x86_64__)
namespace avx2 {
void encode_blocks(DType dtype, const float* x, const float* importance, std::int64_t count, std::byte* out);
}
namespace avx512 {
void encode_blocks(DType dtype, const float* x, const float* importance, std::int64_t count, std::byte* out);
}
#endif

/// The fastest that this processor runs.
EncodeBlocks fastest_encode_blocks();

}  // namespace millrace

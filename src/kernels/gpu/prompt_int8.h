// The form of a prompt's activations that matmul_prompt() reads where its products are of int8 (prompt_products()): one
// scale for 256 elements of a row, so that integers are scaled once a segment and not once a block. Laid out for tiles:
// rows and columns are padded, so that no copy asks where the matrix ends.
// Thread-safety: pure but for the stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/ops.h"

namespace millrace::kernels::gpu {

/// What a segment of a row has beside its int8, each [padded rows]: d, then d times the sums of 32 elements each, then
/// d times those of 16 each, sums rounded to tf32.
constexpr std::int32_t kSegmentScales = 1 + 8 + 16;

/// q: [padded rows, padded cols], zeros behind a row's end, anything in rows that pad. scales: [segments,
/// kSegmentScales, padded rows].
constexpr std::size_t prompt_int8_bytes(std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(PromptInt8::padded_rows(rows) * PromptInt8::segments(cols)) *
         (kSegment + kSegmentScales * sizeof(float));
}
inline PromptInt8 prompt_int8_at(std::byte* memory, std::int64_t rows, std::int64_t cols) {
  const std::int64_t bytes = PromptInt8::padded_rows(rows) * PromptInt8::segments(cols) * kSegment;
  return {reinterpret_cast<std::int8_t*>(memory), reinterpret_cast<float*>(memory + bytes)};
}

/// x rounded to bfloat16, whichever form it comes in (launches before may leave either); then d = amax / 127 of the
/// segment and q = round to nearest even of x * (1 / d); all zero where amax is below 2^-120, and d NaN where an
/// element is not finite. x: [rows, cols], dense, 16-byte aligned; cols: a multiple of 8.
Status round_prompt(const Bf16* x, std::int32_t rows, std::int32_t cols, PromptInt8 out, device::StreamRef stream);
Status round_prompt(const float* x, std::int32_t rows, std::int32_t cols, PromptInt8 out, device::StreamRef stream);

}  // namespace millrace::kernels::gpu

// The rotation of keys and values that few bits are kept of: a Walsh-Hadamard transform of a head's channels.
//
// Outliers of single channels spread over all of a piece, so that a scale fits its 32 channels. The rotation is its own
// inverse and keeps dot products: rotated queries with rotated keys have the scores of plain ones, and a weighted sum
// of rotated values, rotated again, is that of the values.
//
// NUMERICS. Channels are cut into pieces of rotation_span(head_dim). In a piece, for h = 1, 2, 4, ... below the span,
// each pair (i, i + h) where i has no bit h becomes (a + b, a - b); at the end each channel is multiplied by
// rotation_factor(span). All in float32, each operation rounded once: the same bits on every processor.
// Source: QuaRot (arXiv:2404.00456), section 4. Thread-safety: pure functions.
#pragma once

#include <cmath>
#include <cstdint>

namespace millrace::kernels {

/// The largest power of two that divides head_dim.
constexpr std::int64_t rotation_span(std::int64_t head_dim) { return head_dim & -head_dim; }

/// 1 / sqrt(span)
inline float rotation_factor(std::int64_t span) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(span)));
}

}  // namespace millrace::kernels

// Resampling, byte for byte equal to Pillow's (up to version 12): the filter's support grows with the scale
// (antialiasing), the horizontal pass comes before the vertical one, rows between the passes are eight-bit, weights
// have 22 bits. The published processors of vision models depend on it. Thread-safety: functions, no state.
#pragma once

#include "base/status.h"
#include "image/image.h"

namespace millrace::image {

enum class Filter : std::uint8_t { bilinear, bicubic, lanczos };  // bicubic: a = -0.5

/// Resizes the picture to width x height, and stretches it if the aspect ratio differs. REQUIRES: width, height > 0.
/// Errors: out_of_budget (the grant is exhausted), cancelled.
Expected<Image> resample(const Image& picture, std::int64_t width, std::int64_t height, Filter filter,
                         WorkGrant* grant);

}  // namespace millrace::image

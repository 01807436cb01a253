// The only EXIF field that changes how a picture is shown: its orientation. Source: EXIF 2.32 (tag
// 0x0112), TIFF 6.0; where each format keeps EXIF: JPEG's APP1, PNG's eXIf, WebP's EXIF chunk.
// Thread-safety: functions, no state.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "image/decode.h"
#include "image/image.h"

namespace millrace::image {

/// 1 to 8 as in EXIF; 1 (unchanged) if the field is missing or invalid.
int orientation(std::span<const std::byte> file, Format format);
/// True for orientations that exchange width and height.
inline bool lies_down(int orientation) { return orientation >= 5; }
/// The picture, rotated and mirrored by the orientation. Errors: out_of_budget.
Expected<Image> upright(Image image, int orientation, WorkGrant* grant);

}  // namespace millrace::image

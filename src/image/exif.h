// The one EXIF field that changes what a picture shows: which way up the camera was held. Source: EXIF 2.32 (tag
// 0x0112), TIFF 6.0; where each format keeps EXIF: JPEG's APP1, PNG's eXIf, WebP's EXIF chunk.
// Thread-safety: functions, no state.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "image/decode.h"
#include "image/image.h"

namespace millrace::image {

/// 1 to 8 as EXIF numbers them; 1 (as it lies) where the file says nothing or nonsense.
int orientation(std::span<const std::byte> file, Format format);
/// True for those that exchange width and height.
inline bool lies_down(int orientation) { return orientation >= 5; }
/// The picture turned and mirrored as it is meant to be seen. Errors: out_of_budget.
Expected<Image> upright(Image image, int orientation, WorkGrant* grant);

}  // namespace millrace::image

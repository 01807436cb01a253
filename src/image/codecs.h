// The interface of each format's codec for decode.cpp: pixels as stored in the file, before the EXIF orientation is
// applied. The libraries report errors by longjmp, which does not leave the codec. Thread-safety: functions, no state.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "image/decode.h"
#include "image/image.h"

namespace millrace::image {

/// Width and height as stored in the file. Errors: corrupt, unsupported. The area is not checked.
Expected<Header> jpeg_header(std::span<const std::byte> file);
Expected<Header> png_header(std::span<const std::byte> file);
Expected<Header> webp_header(std::span<const std::byte> file);

/// REQUIRES: the header was read, and its area is within the limit.
Expected<Image> decode_jpeg(std::span<const std::byte> file, WorkGrant* grant);
Expected<Image> decode_png(std::span<const std::byte> file, WorkGrant* grant);
Expected<Image> decode_webp(std::span<const std::byte> file, WorkGrant* grant);

/// Allocates an image of this size, with `channels` bytes per pixel from the grant. Errors: out_of_budget.
Expected<Image> blank(std::int64_t width, std::int64_t height, std::int64_t channels, WorkGrant* grant);
/// invalid_argument if the area or a side exceeds the decoder's limits.
Status check_area(const Header& header);
Status out_of_memory(std::int64_t width, std::int64_t height);
Status decoding_cancelled();

/// Converts four channels to three in place, on a white background.
void onto_white(Image& image);

}  // namespace millrace::image

// What decode.cpp asks of each format: pixels as they lie in the file, not yet turned. The libraries report errors by
// longjmp, which each codec keeps to itself. Thread-safety: functions, no state.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "image/decode.h"
#include "image/image.h"

namespace millrace::image {

/// Sides as they lie in the file. Errors: corrupt, unsupported. The area is not checked.
Expected<Header> jpeg_header(std::span<const std::byte> file);
Expected<Header> png_header(std::span<const std::byte> file);
Expected<Header> webp_header(std::span<const std::byte> file);

/// REQUIRES: the header was read, and its area is not too large.
Expected<Image> decode_jpeg(std::span<const std::byte> file, WorkGrant* grant);
Expected<Image> decode_png(std::span<const std::byte> file, WorkGrant* grant);
Expected<Image> decode_webp(std::span<const std::byte> file, WorkGrant* grant);

/// An image of these sides; `channels` bytes a pixel are granted and allocated. Errors: out_of_budget.
Expected<Image> blank(std::int64_t width, std::int64_t height, std::int64_t channels, WorkGrant* grant);
/// invalid_argument where the area or a side is past what is decoded.
Status check_area(const Header& header);
Status out_of_memory(std::int64_t width, std::int64_t height);
Status decoding_cancelled();

/// Four channels become three in place: what is transparent shows white behind it.
void onto_white(Image& image);

}  // namespace millrace::image

// Decodes JPEG, PNG and WebP files with the system's libraries, which it keeps up to date. The result is as the picture
// is meant to be seen: rotated by its EXIF orientation, with transparent parts on white, and in RGB. The area in the
// header is checked before memory is allocated, and all memory is granted. Thread-safety: functions, no state.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/status.h"
#include "image/image.h"

namespace millrace::image {

/// Larger pictures are refused by their header: 64 Mpx, more than any camera phone's default.
inline constexpr std::int64_t kMostPixels = 64'000'000;

enum class Format : std::uint8_t { jpeg, png, webp };
/// "jpeg", "png" or "webp", as in a media type behind "image/".
std::string_view format_name(Format format);

struct Header {
  Format format = Format::png;
  std::int64_t width = 0, height = 0;  // after the EXIF orientation is applied
};

/// Errors: unsupported (not a picture in a known format; the message lists them), corrupt, invalid_argument (more than
/// kMostPixels).
Expected<Header> read_header(std::span<const std::byte> file);

/// `grant` (may be null) is charged for the memory of the decoder and the picture; the picture's bytes stay charged
/// while it lives. Errors: those of read_header(), corrupt (a truncated or inconsistent file), out_of_budget,
/// cancelled.
Expected<Image> decode(std::span<const std::byte> file, WorkGrant* grant);

}  // namespace millrace::image

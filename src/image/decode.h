// Reads JPEG, PNG and WebP files by the libraries that the system keeps up to date. A picture comes out as
// it is meant to be seen: turned by its EXIF orientation, transparent parts on white, every colour model as RGB. The
// header's area is checked before any memory is taken, and the memory is granted. Thread-safety: functions, no state.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/status.h"
#include "image/image.h"

namespace millrace::image {

/// Pictures of more pixels are refused by their header: 64 Mpx, more than any camera phone's default.
inline constexpr std::int64_t kMostPixels = 64'000'000;

enum class Format : std::uint8_t { jpeg, png, webp };
/// "jpeg", "png" or "webp", as in a media type behind "image/".
std::string_view format_name(Format format);

struct Header {
  Format format = Format::png;
  std::int64_t width = 0, height = 0;  // as seen: behind the EXIF orientation
};

/// Errors: unsupported (no picture of a known format; the message names the three), corrupt, invalid_argument (more
/// than kMostPixels).
Expected<Header> read_header(std::span<const std::byte> file);

/// `grant` (may be null) is charged for what the decoder and the picture take; the picture's own bytes stay charged as
/// long as it lives. Errors: read_header's, corrupt (a file that ends early or
/// contradicts itself), out_of_budget, cancelled.
Expected<Image> decode(std::span<const std::byte> file, WorkGrant* grant);

}  // namespace millrace::image

#include "image/exif.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "image/codecs.h"

namespace millrace::image {
namespace {

using Bytes = std::span<const std::byte>;

/// Unsigned integers of either order; nothing past the end is read.
std::optional<std::uint32_t> number(Bytes bytes, std::size_t at, int width, bool little) {
  if (at > bytes.size() || bytes.size() - at < static_cast<std::size_t>(width)) return std::nullopt;
  std::uint32_t value = 0;
  for (int i = 0; i < width; ++i) {
    const int from = little ? width - 1 - i : i;
    value = value << 8 | std::to_integer<std::uint32_t>(bytes[at + static_cast<std::size_t>(from)]);
  }
  return value;
}

bool begins(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

Bytes from(Bytes bytes, std::size_t at, std::size_t most) {
  if (at >= bytes.size()) return {};
  return bytes.subspan(at, std::min(most, bytes.size() - at));
}

constexpr std::string_view kExif("Exif\0\0", 6);

Bytes exif_of_jpeg(Bytes file) {
  std::size_t at = 2;
  while (true) {
    const auto mark = number(file, at, 2, false);
    if (!mark || *mark < 0xFF00) return {};
    if (*mark == 0xFFFF) {  // a marker may be filled up with FF
      ++at;
      continue;
    }
    const auto length = number(file, at + 2, 2, false);
    if (*mark == 0xFFDA || !length || *length < 2) return {};  // the scan begins: behind it are pixels
    const Bytes segment = from(file, at + 4, *length - 2);
    if (*mark == 0xFFE1 && begins(segment, kExif)) return segment.subspan(kExif.size());
    at += 2 + *length;
  }
}

Bytes exif_of_png(Bytes file) {
  std::size_t at = 8;
  while (true) {
    const auto length = number(file, at, 4, false);
    if (!length || *length > 0x7FFFFFFF) return {};
    if (begins(from(file, at + 4, 4), "eXIf")) return from(file, at + 8, *length);
    at += 12 + std::size_t{*length};
  }
}

Bytes exif_of_webp(Bytes file) {
  std::size_t at = 12;
  while (true) {
    const auto length = number(file, at + 4, 4, true);
    if (!length) return {};
    if (begins(from(file, at, 4), "EXIF")) {
      const Bytes chunk = from(file, at + 8, *length);
      return begins(chunk, kExif) ? chunk.subspan(kExif.size()) : chunk;
    }
    at += 8 + std::size_t{*length} + (*length & 1);
  }
}

/// The orientation among the first directory's entries.
int orientation_in(Bytes tiff) {
  const bool little = begins(tiff, "II");
  if (!little && !begins(tiff, "MM")) return 1;
  const auto directory = number(tiff, 4, 4, little);
  if (!directory) return 1;
  const auto entries = number(tiff, *directory, 2, little);
  if (!entries) return 1;
  for (std::uint32_t i = 0; i < *entries; ++i) {
    const std::size_t entry = std::size_t{*directory} + 2 + std::size_t{12} * i;
    const auto tag = number(tiff, entry, 2, little);
    if (!tag) return 1;
    if (*tag != 0x0112) continue;
    constexpr std::uint32_t kShort = 3;
    const auto type = number(tiff, entry + 2, 2, little), value = number(tiff, entry + 8, 2, little);
    return type == kShort && value && *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
  }
  return 1;
}

}  // namespace

int orientation(std::span<const std::byte> file, Format format) {
  switch (format) {
    case Format::jpeg:
      return orientation_in(exif_of_jpeg(file));
    case Format::png:
      return orientation_in(exif_of_png(file));
    case Format::webp:
      return orientation_in(exif_of_webp(file));
  }
  return 1;
}

Expected<Image> upright(Image image, int orientation, WorkGrant* grant) {
  if (orientation <= 1 || orientation > 8) return image;
  const bool lying = lies_down(orientation);
  const std::int64_t width = lying ? image.height : image.width, height = lying ? image.width : image.height;
  MR_ASSIGN_OR_RETURN(Image turned, blank(width, height, 3, grant));
  // As seen, (y, x) shows the file's (row, col). Where the picture lies down, y runs along the file's columns.
  const bool row_back = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool col_back = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      std::int64_t row = lying ? x : y, col = lying ? y : x;
      if (row_back) row = image.height - 1 - row;
      if (col_back) col = image.width - 1 - col;
      std::memcpy(&turned.rgb[static_cast<std::size_t>((y * width + x) * 3)],
                  &image.rgb[static_cast<std::size_t>((row * image.width + col) * 3)], 3);
    }
  }
  return turned;
}

}  // namespace millrace::image

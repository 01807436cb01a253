#include "image/decode.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "image/codecs.h"
#include "image/exif.h"

namespace millrace::image {
namespace {

// JPEG's own limit; a PNG may claim more.
constexpr std::int64_t kMostSide = 65'535;

bool has(std::span<const std::byte> file, std::size_t at, std::string_view text) {
  return file.size() >= at + text.size() && std::memcmp(file.data() + at, text.data(), text.size()) == 0;
}

/// What a file that is no picture for us looks like; empty: like nothing known.
std::string_view other_kind(std::span<const std::byte> file) {
  if (has(file, 0, "GIF8")) return "a GIF";
  if (has(file, 4, "ftypavif")) return "an AVIF";
  if (has(file, 4, "ftyp")) return "a HEIC or MPEG-4 file";
  if (has(file, 0, "BM")) return "a BMP";
  if (has(file, 0, std::string_view("II*\0", 4)) || has(file, 0, std::string_view("MM\0*", 4))) return "a TIFF";
  if (has(file, 0, "%PDF")) return "a PDF";
  if (has(file, 0, "<svg") || has(file, 0, "<?xml")) return "an SVG or XML file";
  return "";
}

Expected<Format> format_of(std::span<const std::byte> file) {
  if (has(file, 0, "\xFF\xD8\xFF")) return Format::jpeg;
  if (has(file, 0, "\x89PNG\r\n\x1A\n")) return Format::png;
  if (has(file, 0, "RIFF") && has(file, 8, "WEBP")) return Format::webp;
  if (file.empty()) return error(Code::unsupported, "the picture has no bytes; send a JPEG, PNG or WebP file");
  const std::string_view kind = other_kind(file);
  if (kind.empty()) {
    return error(Code::unsupported, "the bytes are no picture of a kind that is read; send a JPEG, PNG or WebP file");
  }
  return error(Code::unsupported, "the picture is {}, which is not read; send a JPEG, PNG or WebP file", kind);
}

Expected<Header> header_as_stored(std::span<const std::byte> file) {
  MR_ASSIGN_OR_RETURN(const Format format, format_of(file));
  Expected<Header> header = format == Format::jpeg  ? jpeg_header(file)
                            : format == Format::png ? png_header(file)
                                                    : webp_header(file);
  if (!header.ok()) return header;
  MR_RETURN_IF_ERROR(check_area(*header));
  return header;
}

}  // namespace

std::string_view format_name(Format format) {
  switch (format) {
    case Format::jpeg:
      return "jpeg";
    case Format::png:
      return "png";
    case Format::webp:
      return "webp";
  }
  return "";
}

Status check_area(const Header& header) {
  if (header.width <= 0 || header.height <= 0) {
    return error(Code::corrupt, "the picture is {} x {} pixels: it is empty", header.width, header.height);
  }
  if (header.width > kMostSide || header.height > kMostSide || header.width * header.height > kMostPixels) {
    return error(Code::invalid_argument,
                 "the picture is {} x {} pixels; up to {} million pixels and {} a side are read: send it smaller",
                 header.width, header.height, kMostPixels / 1'000'000, kMostSide);
  }
  return {};
}

Status out_of_memory(std::int64_t width, std::int64_t height) {
  return error(
      Code::out_of_budget,
      "the picture of {} x {} pixels takes more memory than is free; send it smaller, or start with more --ram", width,
      height);
}

Status decoding_cancelled() { return error(Code::cancelled, "the picture was being read when the request ended"); }

Expected<Image> blank(std::int64_t width, std::int64_t height, std::int64_t channels, WorkGrant* grant) {
  Image image{.width = width, .height = height, .rgb = {}, .memory = {}};
  const auto bytes = static_cast<std::uint64_t>(width * height * channels);
  if (!image.memory.take(grant, bytes)) return out_of_memory(width, height);
  image.rgb.resize(bytes);
  return image;
}

void onto_white(Image& image) {
  const std::int64_t pixels = image.width * image.height;
  std::uint8_t* to = image.rgb.data();
  const std::uint8_t* from = image.rgb.data();
  for (std::int64_t i = 0; i < pixels; ++i, from += 4, to += 3) {
    const int alpha = from[3];
    for (int c = 0; c < 3; ++c) to[c] = static_cast<std::uint8_t>((from[c] * alpha + 255 * (255 - alpha) + 127) / 255);
  }
  image.rgb.resize(static_cast<std::size_t>(pixels * 3));
}

Expected<Header> read_header(std::span<const std::byte> file) {
  MR_ASSIGN_OR_RETURN(Header header, header_as_stored(file));
  if (lies_down(orientation(file, header.format))) std::swap(header.width, header.height);
  return header;
}

Expected<Image> decode(std::span<const std::byte> file, WorkGrant* grant) {
  MR_ASSIGN_OR_RETURN(const Header header, header_as_stored(file));
  Expected<Image> image = header.format == Format::jpeg  ? decode_jpeg(file, grant)
                          : header.format == Format::png ? decode_png(file, grant)
                                                         : decode_webp(file, grant);
  if (!image.ok()) return image;
  return upright(std::move(image).value(), orientation(file, header.format), grant);
}

}  // namespace millrace::image

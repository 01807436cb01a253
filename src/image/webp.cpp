// WebP by libwebp, lossy and lossless.
#include <webp/decode.h>

#include "image/codecs.h"

namespace millrace::image {
namespace {

const std::uint8_t* bytes_of(std::span<const std::byte> file) {
  return reinterpret_cast<const std::uint8_t*>(file.data());
}

Status failed(VP8StatusCode code, std::int64_t width, std::int64_t height) {
  switch (code) {
    case VP8_STATUS_OUT_OF_MEMORY:
      return out_of_memory(width, height);
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return error(Code::corrupt, "the WebP ends early: it was cut when it was stored or sent");
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return error(Code::unsupported, "the WebP uses a feature that libwebp cannot decode; send a PNG");
    default:
      return error(Code::corrupt, "the WebP is damaged");
  }
}

Expected<WebPBitstreamFeatures> features_of(std::span<const std::byte> file) {
  WebPBitstreamFeatures features = {};
  if (const VP8StatusCode code = WebPGetFeatures(bytes_of(file), file.size(), &features); code != VP8_STATUS_OK) {
    return failed(code, 0, 0);
  }
  if (features.has_animation != 0) {
    return error(Code::unsupported, "the WebP is animated, which is not read; send one frame of it");
  }
  return features;
}

}  // namespace

Expected<Header> webp_header(std::span<const std::byte> file) {
  MR_ASSIGN_OR_RETURN(const WebPBitstreamFeatures features, features_of(file));
  return Header{.format = Format::webp, .width = features.width, .height = features.height};
}

Expected<Image> decode_webp(std::span<const std::byte> file, WorkGrant* grant) {
  MR_ASSIGN_OR_RETURN(const WebPBitstreamFeatures features, features_of(file));
  const std::int64_t width = features.width, height = features.height;
  const std::int64_t channels = features.has_alpha != 0 ? 4 : 3;
  MR_RETURN_IF_ERROR(check_area({.format = Format::webp, .width = width, .height = height}));
  // The library holds a lossless picture whole, four bytes a pixel, and one byte of alpha; of a lossy one some rows.
  constexpr std::uint64_t kLibraryBytes = 2u << 20;
  GrantLease library;
  if (!library.take(grant, kLibraryBytes + static_cast<std::uint64_t>(width * height) * 5)) {
    return out_of_memory(width, height);
  }
  MR_ASSIGN_OR_RETURN(Image image, blank(width, height, channels, grant));
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) return error(Code::internal, "libwebp is of another version than built for");
  config.output.colorspace = channels == 4 ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = image.rgb.data();
  config.output.u.RGBA.stride = static_cast<int>(width * channels);
  config.output.u.RGBA.size = image.rgb.size();
  const VP8StatusCode code = WebPDecode(bytes_of(file), file.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (code != VP8_STATUS_OK) return failed(code, width, height);
  if (channels == 4) onto_white(image);
  return image;
}

}  // namespace millrace::image

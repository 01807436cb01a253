// JPEG by libjpeg-turbo. The library reports an error by a call that must not return: it jumps back to the function
// that called the library. Those functions (open, start, rows) own nothing that a jump would leave behind.
#include <csetjmp>
#include <cstdio>
#include <vector>
// jpeglib.h needs stdio's types.
#include <jerror.h>
#include <jpeglib.h>

#include "image/codecs.h"

namespace millrace::image {
namespace {

// A progressive file repeats its passes over all pixels as often as it has scans; encoders write about ten.
constexpr int kMostScans = 100;

struct JpegReader {
  jpeg_decompress_struct info = {};
  jpeg_error_mgr errors = {};
  jpeg_progress_mgr progress = {};
  std::jmp_buf back = {};
  char message[JMSG_LENGTH_MAX] = {};
  WorkGrant* grant = nullptr;
  bool early = false, cancelled = false;
  std::vector<std::uint8_t> row;  // of four channels
  GrantLease memory;              // covers what the library takes

  JpegReader() = default;
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() { jpeg_destroy_decompress(&info); }

  Status failed() const {
    if (cancelled) return decoding_cancelled();
    if (early) return error(Code::corrupt, "the JPEG ends early: it was cut when it was stored or sent");
    return error(Code::corrupt, "the JPEG is damaged: {}", message);
  }
};

JpegReader& reader_of(j_common_ptr info) { return *static_cast<JpegReader*>(info->client_data); }

void on_error(j_common_ptr info) {
  JpegReader& reader = reader_of(info);
  info->err->format_message(info, reader.message);
  std::longjmp(reader.back, 1);
}

// Warnings are of data that shows as noise at worst, but for the end of the file, behind which all is grey.
void on_message(j_common_ptr info, int level) {
  if (level >= 0 || info->err->msg_code != JWRN_JPEG_EOF) return;
  JpegReader& reader = reader_of(info);
  reader.early = true;
  std::longjmp(reader.back, 1);
}

void on_progress(j_common_ptr info) {
  JpegReader& reader = reader_of(info);
  reader.cancelled = reader.grant != nullptr && reader.grant->cancelled();
  if (!reader.cancelled && reader.info.input_scan_number <= kMostScans) return;
  std::snprintf(reader.message, sizeof(reader.message), "it has more than %d scans", kMostScans);
  std::longjmp(reader.back, 1);
}

bool open(JpegReader& reader, std::span<const std::byte> file) {
  reader.info.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = on_error;
  reader.errors.emit_message = on_message;
  reader.info.client_data = &reader;
  if (setjmp(reader.back) != 0) return false;
  jpeg_create_decompress(&reader.info);
  jpeg_mem_src(&reader.info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&reader.info, TRUE);
  return true;
}

bool start(JpegReader& reader) {
  reader.progress.progress_monitor = on_progress;
  reader.info.progress = &reader.progress;
  if (setjmp(reader.back) != 0) return false;
  jpeg_start_decompress(&reader.info);
  return true;
}

/// Inks as Adobe stores them, inverted, to red, green and blue as Pillow does.
void inks_to_rgb(const std::uint8_t* inks, std::int64_t pixels, std::uint8_t* rgb) {
  for (std::int64_t i = 0; i < pixels; ++i, inks += 4, rgb += 3) {
    const int light = inks[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - inks[c]) * light + 128;
      rgb[c] = static_cast<std::uint8_t>(light - (((product >> 8) + product) >> 8));
    }
  }
}

bool rows(JpegReader& reader, std::uint8_t* rgb) {
  jpeg_decompress_struct& info = reader.info;
  const auto width = static_cast<std::size_t>(info.output_width);
  if (setjmp(reader.back) != 0) return false;
  while (info.output_scanline < info.output_height) {
    std::uint8_t* const to = rgb + info.output_scanline * width * 3;
    JSAMPROW at = reader.row.empty() ? to : reader.row.data();
    jpeg_read_scanlines(&info, &at, 1);
    if (!reader.row.empty()) inks_to_rgb(at, static_cast<std::int64_t>(width), to);
  }
  return true;
}

/// What the library takes: some rows of every component, and all coefficients of a file in several scans.
std::uint64_t library_bytes(jpeg_decompress_struct& info) {
  std::uint64_t bytes = std::uint64_t{256} << 10;
  for (int c = 0; c < info.num_components; ++c) {
    const jpeg_component_info& one = info.comp_info[c];
    const std::uint64_t wide = std::uint64_t{one.width_in_blocks} + 8, high = std::uint64_t{one.height_in_blocks} + 8;
    bytes += wide * 8 * 64;
    if (jpeg_has_multiple_scans(&info) != 0) bytes += wide * high * 64 * sizeof(JCOEF);
  }
  return bytes + std::uint64_t{info.image_width} * 64;
}

}  // namespace

Expected<Header> jpeg_header(std::span<const std::byte> file) {
  JpegReader reader;
  if (!open(reader, file)) return reader.failed();
  return Header{.format = Format::jpeg,
                .width = static_cast<std::int64_t>(reader.info.image_width),
                .height = static_cast<std::int64_t>(reader.info.image_height)};
}

Expected<Image> decode_jpeg(std::span<const std::byte> file, WorkGrant* grant) {
  JpegReader reader;
  reader.grant = grant;
  if (!open(reader, file)) return reader.failed();
  jpeg_decompress_struct& info = reader.info;
  const auto width = static_cast<std::int64_t>(info.image_width), height = static_cast<std::int64_t>(info.image_height);
  const bool inks = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  if (!inks && info.num_components != 1 && info.num_components != 3) {
    return error(Code::unsupported, "the JPEG has {} channels; those with 1, 3 or 4 (CMYK) are read",
                 info.num_components);
  }
  info.out_color_space = inks ? JCS_CMYK : JCS_RGB;
  if (!reader.memory.take(grant, library_bytes(info))) return out_of_memory(width, height);
  MR_ASSIGN_OR_RETURN(Image image, blank(width, height, 3, grant));
  if (inks) reader.row.resize(static_cast<std::size_t>(width * 4));
  if (!start(reader) || !rows(reader, image.rgb.data())) return reader.failed();
  return image;
}

}  // namespace millrace::image

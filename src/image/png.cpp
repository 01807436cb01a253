// PNG by libpng. The library reports an error by a call that must not return: it jumps back to the function that called
// the library. Those functions (open_png, read_rows) own nothing that a jump would leave behind.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "image/codecs.h"

namespace millrace::image {
namespace {

// No chunk beside the pixels matters here; what the library keeps of them is bounded.
constexpr png_alloc_size_t kMostChunkBytes = 1u << 20;

struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::byte> rest;
  WorkGrant* grant = nullptr;
  std::jmp_buf back = {};
  char message[160] = {};
  bool early = false, no_memory = false, cancelled = false;
  std::vector<png_bytep> row_starts;
  int passes = 1;

  PngReader() = default;
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }

  Status failed(std::int64_t width, std::int64_t height) const {
    if (cancelled) return decoding_cancelled();
    if (no_memory) return out_of_memory(width, height);
    if (early) return error(Code::corrupt, "the PNG ends early: it was cut when it was stored or sent");
    return error(Code::corrupt, "the PNG is damaged: {}", message);
  }
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto& reader = *static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader.message, sizeof(reader.message), "%s", message);
  std::longjmp(reader.back, 1);
}

void on_warning(png_structp, png_const_charp) {}

void read(png_structp png, png_bytep to, std::size_t bytes) {
  auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
  if (bytes > reader.rest.size()) {
    reader.early = true;
    png_error(png, "it ends early");
  }
  std::memcpy(to, reader.rest.data(), bytes);
  reader.rest = reader.rest.subspan(bytes);
}

// Each allocation carries its size before it, so that as much is given back.
constexpr std::size_t kSizeBytes = alignof(std::max_align_t);

png_voidp granted_malloc(png_structp png, png_alloc_size_t bytes) {
  auto& reader = *static_cast<PngReader*>(png_get_mem_ptr(png));
  const std::size_t whole = bytes + kSizeBytes;
  if (reader.grant != nullptr && !reader.grant->take(whole)) {
    reader.no_memory = true;
    return nullptr;
  }
  auto* const memory = static_cast<std::byte*>(std::malloc(whole));
  if (memory == nullptr) {
    reader.no_memory = true;
    if (reader.grant != nullptr) reader.grant->give_back(whole);
    return nullptr;
  }
  std::memcpy(memory, &whole, sizeof(whole));
  return memory + kSizeBytes;
}

void granted_free(png_structp png, png_voidp at) {
  if (at == nullptr) return;
  auto& reader = *static_cast<PngReader*>(png_get_mem_ptr(png));
  auto* const memory = static_cast<std::byte*>(at) - kSizeBytes;
  std::size_t whole = 0;
  std::memcpy(&whole, memory, sizeof(whole));
  std::free(memory);
  if (reader.grant != nullptr) reader.grant->give_back(whole);
}

/// Reads up to the pixels. Behind it rows are RGB or RGBA, eight bits each.
bool open_png(PngReader& reader) {
  if (setjmp(reader.back) != 0) return false;
  reader.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning, &reader, granted_malloc,
                                        granted_free);
  if (reader.png == nullptr) return false;
  reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) return false;
  png_set_read_fn(reader.png, &reader, read);
  png_set_chunk_cache_max(reader.png, 64);
  png_set_chunk_malloc_max(reader.png, kMostChunkBytes);
  png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
  png_read_info(reader.png, reader.info);
  png_set_expand(reader.png);  // palettes to RGB, grey of few bits to eight, a transparent colour to alpha
  png_set_strip_16(reader.png);
  png_set_gray_to_rgb(reader.png);
  reader.passes = png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

bool read_rows(PngReader& reader) {
  if (setjmp(reader.back) != 0) return false;
  for (int pass = 0; pass < reader.passes; ++pass) {
    for (const png_bytep row : reader.row_starts) {
      if (reader.grant != nullptr && reader.grant->cancelled()) {
        reader.cancelled = true;
        return false;
      }
      png_read_row(reader.png, row, nullptr);
    }
  }
  return true;
}

}  // namespace

Expected<Header> png_header(std::span<const std::byte> file) {
  // A PNG begins with its signature, then the first chunk's length and name, width and height.
  constexpr std::size_t kName = 12, kWidth = 16, kHeight = 20;
  if (file.size() < kHeight + 4) return error(Code::corrupt, "the PNG ends within its header");
  if (std::memcmp(file.data() + kName, "IHDR", 4) != 0) {
    return error(Code::corrupt, "the PNG is damaged: it does not begin with its header");
  }
  const auto* const bytes = reinterpret_cast<png_const_bytep>(file.data());
  return Header{.format = Format::png,
                .width = static_cast<std::int64_t>(png_get_uint_32(bytes + kWidth)),
                .height = static_cast<std::int64_t>(png_get_uint_32(bytes + kHeight))};
}

Expected<Image> decode_png(std::span<const std::byte> file, WorkGrant* grant) {
  PngReader reader;
  reader.rest = file;
  reader.grant = grant;
  MR_ASSIGN_OR_RETURN(const Header header, png_header(file));
  if (!open_png(reader)) return reader.failed(header.width, header.height);
  const auto width = static_cast<std::int64_t>(png_get_image_width(reader.png, reader.info));
  const auto height = static_cast<std::int64_t>(png_get_image_height(reader.png, reader.info));
  MR_RETURN_IF_ERROR(check_area({.format = Format::png, .width = width, .height = height}));
  const std::int64_t channels = png_get_channels(reader.png, reader.info);
  const std::size_t row_bytes = png_get_rowbytes(reader.png, reader.info);
  if ((channels != 3 && channels != 4) || row_bytes != static_cast<std::size_t>(width * channels)) {
    return error(Code::unsupported, "the PNG comes out with {} channels; 3 or 4 are read", channels);
  }
  GrantLease starts;
  if (!starts.take(grant, static_cast<std::uint64_t>(height) * sizeof(png_bytep))) return out_of_memory(width, height);
  MR_ASSIGN_OR_RETURN(Image image, blank(width, height, channels, grant));
  for (std::int64_t y = 0; y < height; ++y) {
    reader.row_starts.push_back(image.rgb.data() + static_cast<std::size_t>(y) * row_bytes);
  }
  if (!read_rows(reader)) return reader.failed(width, height);
  if (channels == 4) onto_white(image);
  return image;
}

}  // namespace millrace::image

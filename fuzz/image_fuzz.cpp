// Pictures of any bytes: they are refused in one line or become a picture of the size that their header has, within the
// memory that is granted, all of which comes back; and what a vision model makes of that size is whole.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "image/decode.h"
#include "image/resample.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

struct Grant final : millrace::WorkGrant {
  std::uint64_t left = 48u << 20;
  bool take(std::uint64_t bytes) override {
    if (bytes > left) return false;
    left -= bytes;
    return true;
  }
  void give_back(std::uint64_t bytes) noexcept override { left += bytes; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const auto file = std::as_bytes(std::span(data, size));
  Grant grant;
  const std::uint64_t before = grant.left;
  {
    const auto header = image::read_header(file);
    if (!header.ok()) check(header.status().message().find('\n') == std::string::npos);
    const auto picture = image::decode(file, &grant);
    if (!picture.ok()) {
      check(picture.status().message().find('\n') == std::string::npos);
    } else {
      check(header.ok() && header->width == picture->width && header->height == picture->height);
      check(picture->rgb.size() == static_cast<std::size_t>(picture->width * picture->height * 3));
      const auto small = image::resample(*picture, 1 + size % 61, 1 + size % 37, image::Filter::bicubic, &grant);
      check(!small.ok() || small->rgb.size() == (1 + size % 61) * (1 + size % 37) * 3);
    }
  }
  check(grant.left == before);
  return 0;
}

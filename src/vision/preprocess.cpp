#include "vision/preprocess.h"

#include <array>

namespace millrace::vision {
namespace {

/// For each channel and each of the 256 values a byte has: (x / 255 - mean) / deviation, in float as processors do.
using Levels = std::array<std::array<float, 256>, 3>;

Levels levels_of(const Spec& spec) {
  Levels levels = {};
  for (std::size_t c = 0; c < levels.size(); ++c) {
    for (std::size_t value = 0; value < 256; ++value) {
      const float unit = static_cast<float>(static_cast<double>(value) / 255.0);
      levels[c][value] = (unit - spec.mean[c]) / spec.deviation[c];
    }
  }
  return levels;
}

}  // namespace

Expected<Patches> preprocess(const Spec& spec, const image::Image& picture, WorkGrant* grant) {
  MR_ASSIGN_OR_RETURN(const Size size, fitted(spec, {picture.height, picture.width}));
  MR_ASSIGN_OR_RETURN(const image::Image sized, image::resample(picture, size.width, size.height, spec.filter, grant));
  const Grid tokens = grid(spec, size);
  Patches patches{.rows = size.height / spec.patch,
                  .cols = size.width / spec.patch,
                  .dim = 3 * spec.patch * spec.patch,
                  .pixels = {},
                  .memory = {}};
  const auto count = static_cast<std::uint64_t>(patches.rows * patches.cols * patches.dim);
  if (!patches.memory.take(grant, count * sizeof(float))) {
    return error(Code::out_of_budget,
                 "the picture becomes {} x {} pixels for this model, which takes {} MiB more than is free; send it "
                 "smaller, or start with more --ram",
                 size.width, size.height, (count * sizeof(float) >> 20) + 1);
  }
  patches.pixels.resize(count);
  const Levels levels = levels_of(spec);
  float* to = patches.pixels.data();
  for (std::int64_t i = 0; i < patches.rows * patches.cols; ++i) {
    const Place place = patch_place(spec, tokens, i);
    const std::uint8_t* const corner =
        sized.rgb.data() + (place.row * spec.patch * size.width + place.col * spec.patch) * 3;
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::int64_t y = 0; y < spec.patch; ++y) {
        const std::uint8_t* from = corner + y * size.width * 3 + c;
        for (std::int64_t x = 0; x < spec.patch; ++x, from += 3) *to++ = levels[c][*from];
      }
    }
  }
  return patches;
}

}  // namespace millrace::vision

#include "vision/preprocess.h"

#include <algorithm>
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

/// Pixels [top, top + size.height) x [left, left + size.width) of the picture, which are black where it has none.
Expected<Patches> patches_of(const Spec& spec, const Levels& levels, const image::Image& picture, std::int64_t top,
                             std::int64_t left, Size size, WorkGrant* grant) {
  const Grid tokens = grid(spec, size);
  Patches patches{.rows = tokens.rows * spec.merge,
                  .cols = tokens.cols * spec.merge,
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
  float* to = patches.pixels.data();
  for (std::int64_t i = 0; i < patches.rows * patches.cols; ++i) {
    const Place place = patch_place(spec, tokens, i);
    const std::int64_t y0 = top + place.row * spec.patch, x0 = left + place.col * spec.patch;
    const std::int64_t rows = std::clamp<std::int64_t>(picture.height - y0, 0, spec.patch);
    const std::int64_t cols = std::clamp<std::int64_t>(picture.width - x0, 0, spec.patch);
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::int64_t y = 0; y < spec.patch; ++y) {
        const std::int64_t seen = y < rows ? cols : 0;
        std::size_t from = static_cast<std::size_t>((y0 + y) * picture.width + x0) * 3 + c;
        for (std::int64_t x = 0; x < seen; ++x, from += 3) *to++ = levels[c][picture.rgb[from]];
        to = std::fill_n(to, spec.patch - seen, levels[c][0]);
      }
    }
  }
  return patches;
}

}  // namespace

Expected<std::vector<Patches>> preprocess(const Spec& spec, const image::Image& picture, WorkGrant* grant) {
  MR_ASSIGN_OR_RETURN(const Cut cut, vision::cut(spec, {picture.height, picture.width}));
  const Levels levels = levels_of(spec);
  std::vector<Patches> views;
  image::Image first, canvas;  // the picture resized once, and what tiles are cut from
  const image::Image* source = &picture;
  if (cut.before.height > 0) {
    MR_ASSIGN_OR_RETURN(first, image::resample(picture, cut.before.width, cut.before.height, spec.filter, grant));
    source = &first;
  }
  if (cut.tiles() > 0) {
    const Size tile = cut.tile;
    MR_ASSIGN_OR_RETURN(canvas,
                        image::resample(*source, cut.cols * tile.width, cut.rows * tile.height, spec.filter, grant));
    for (std::int64_t i = 0; i < cut.tiles(); ++i) {
      const std::int64_t top = i / cut.cols * tile.height, left = i % cut.cols * tile.width;
      MR_ASSIGN_OR_RETURN(views.emplace_back(), patches_of(spec, levels, canvas, top, left, tile, grant));
    }
    if (spec.tiling == Tiling::covering) source = &canvas;  // the whole is made of it, too
  }
  if (cut.has_whole()) {
    MR_ASSIGN_OR_RETURN(const image::Image whole,
                        image::resample(*source, cut.pixels.width, cut.pixels.height, spec.filter, grant));
    MR_ASSIGN_OR_RETURN(views.emplace_back(), patches_of(spec, levels, whole, 0, 0, cut.whole, grant));
  }
  return views;
}

}  // namespace millrace::vision

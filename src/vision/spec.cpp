#include "vision/spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace millrace::vision {
namespace {

constexpr std::array<float, 3> kClipMean = {0.48145466f, 0.4578275f, 0.40821073f};
constexpr std::array<float, 3> kClipDeviation = {0.26862954f, 0.26130258f, 0.27577711f};
constexpr std::array<float, 3> kHalf = {0.5f, 0.5f, 0.5f};
constexpr std::array<float, 3> kImageNetMean = {0.485f, 0.456f, 0.406f};
constexpr std::array<float, 3> kImageNetDeviation = {0.229f, 0.224f, 0.225f};
constexpr std::array<float, 3> kNone = {0, 0, 0}, kOne = {1, 1, 1};

struct Named {
  std::string_view name;  // clip.projector_type
  Spec spec;              // where the file has no key
};

const std::array<Named, 12>& table() {
  static const std::array<Named, 12> specs = {{
      {"qwen3vl_merger",
       {.projector = Projector::qwen3vl,
        .patch = 16,
        .merge = 2,
        .resize = Resize::smart,
        .least_pixels = 65'536,
        .most_pixels = 16'777'216,
        .mean = kHalf,
        .deviation = kHalf}},
      {"qwen2.5vl_merger",
       {.projector = Projector::qwen25vl,
        .patch = 14,
        .merge = 2,
        .resize = Resize::smart,
        .least_pixels = 3'136,
        .most_pixels = 12'845'056,
        .mean = kClipMean,
        .deviation = kClipDeviation}},
      {"qwen2vl_merger",
       {.projector = Projector::qwen2vl,
        .patch = 14,
        .merge = 2,
        .resize = Resize::smart,
        .least_pixels = 3'136,
        .most_pixels = 12'845'056,
        .mean = kClipMean,
        .deviation = kClipDeviation}},
      {"gemma3",
       {.projector = Projector::gemma3,
        .patch = 14,
        .merge = 4,
        .resize = Resize::square,
        .image_size = 896,
        .mean = kHalf,
        .deviation = kHalf,
        .filter = image::Filter::bilinear}},
      {"gemma4v",
       {.projector = Projector::gemma4,
        .patch = 16,
        .merge = 3,
        .resize = Resize::budget,
        .most_tokens = 280,
        .mean = kHalf,
        .deviation = kHalf}},
      {"gemma4uv",
       {.projector = Projector::gemma4u,
        .patch = 16,
        .merge = 3,
        .resize = Resize::budget,
        .most_tokens = 280,
        .mean = kNone,
        .deviation = kOne}},
      {"pixtral",
       {.projector = Projector::pixtral,
        .patch = 16,
        .merge = 1,
        .resize = Resize::longest,
        .image_size = 1024,
        .mean = kClipMean,
        .deviation = kClipDeviation}},
      {"internvl",
       {.projector = Projector::internvl,
        .patch = 14,
        .merge = 2,
        .resize = Resize::square,
        .image_size = 448,
        .tiling = Tiling::nearest,
        .least_tiles = 1,
        .most_tiles = 12,
        .mean = kImageNetMean,
        .deviation = kImageNetDeviation}},
      {"idefics3",
       {.projector = Projector::idefics3,
        .patch = 16,
        .merge = 4,
        .resize = Resize::square,
        .image_size = 512,
        .tiling = Tiling::covering,
        .mean = kHalf,
        .deviation = kHalf,
        .filter = image::Filter::lanczos}},
      {"lfm2",
       {.projector = Projector::lfm2,
        .patch = 16,
        .merge = 2,
        .resize = Resize::smart,
        .least_pixels = 65'536,
        .most_pixels = 262'144,
        .tiling = Tiling::large,
        .tile = 512,
        .least_tiles = 2,
        .most_tiles = 10,
        .mean = kHalf,
        .deviation = kHalf,
        .filter = image::Filter::bilinear}},
      // The processor's own limits are of two frames, of which a picture is one.
      {"glm4v",
       {.projector = Projector::glm4v,
        .patch = 14,
        .merge = 2,
        .resize = Resize::smart,
        .least_pixels = 6'272,
        .most_pixels = 4'816'896,
        .mean = kClipMean,
        .deviation = kClipDeviation}},
      {"kimivl",
       {.projector = Projector::kimivl,
        .patch = 14,
        .merge = 2,
        .resize = Resize::padded,
        .most_pixels = 4'096 * 14 * 14,
        .mean = kHalf,
        .deviation = kHalf}},
  }};
  return specs;
}

Expected<std::string> projector_type(const modelfile::Model& mmproj) {
  for (const std::string_view key : {"clip.vision.projector_type", "clip.projector_type"}) {
    if (mmproj.has(key)) return mmproj.get_string(key);
  }
  return error(
      Code::not_found,
      "{} has no key clip.projector_type, so it is not a file for pictures; give --mmproj the mmproj file that "
      "belongs to the model",
      mmproj.paths().empty() ? "the file" : mmproj.paths().front());
}

/// `value` becomes the key's, if the file has it and it lies in [least, most].
Status take(const modelfile::Model& mmproj, std::string_view key, std::int64_t least, std::int64_t most,
            std::int64_t& value) {
  MR_ASSIGN_OR_RETURN(const std::int64_t found, mmproj.get_int_or(key, value));
  if (mmproj.has(key) && (found < least || found > most)) {
    return error(Code::corrupt, "{} is {}; it has to lie between {} and {}", key, found, least, most);
  }
  value = found;
  return {};
}

Status take(const modelfile::Model& mmproj, std::string_view key, bool positive, std::array<float, 3>& value) {
  if (!mmproj.has(key)) return {};
  MR_ASSIGN_OR_RETURN(const std::vector<float> found, mmproj.get_floats(key));
  if (found.size() != value.size()) {
    return error(Code::corrupt, "{} has {} values; it takes 3, one a channel", key, found.size());
  }
  for (const float x : found) {
    if (!std::isfinite(x) || (positive && x <= 0)) {
      return error(Code::corrupt, "{} holds {}, by which no pixel can be normalized", key, x);
    }
  }
  std::copy(found.begin(), found.end(), value.begin());
  return {};
}

/// Which of two keys holds how many patches a side become a token.
bool merges_by_factor(Projector projector) {
  switch (projector) {
    case Projector::gemma3:
    case Projector::gemma4:
    case Projector::gemma4u:
    case Projector::internvl:
    case Projector::idefics3:
    case Projector::lfm2:
    case Projector::kimivl:
      return true;
    default:
      return false;
  }
}

Status take_tiles(const modelfile::Model& mmproj, Spec& spec) {
  constexpr std::int64_t kMostTiles = 64, kMostAlongSide = 16;
  if (spec.tiling == Tiling::nearest) {
    MR_RETURN_IF_ERROR(take(mmproj, "clip.vision.preproc_min_tiles", 1, kMostTiles, spec.least_tiles));
    MR_RETURN_IF_ERROR(take(mmproj, "clip.vision.preproc_max_tiles", 1, kMostTiles, spec.most_tiles));
    if (spec.least_tiles > spec.most_tiles) {
      return error(Code::corrupt, "clip.vision.preproc_min_tiles is {}, more than preproc_max_tiles, {}",
                   spec.least_tiles, spec.most_tiles);
    }
  }
  if (spec.tiling == Tiling::covering) {
    spec.longest_side = 4 * spec.image_size;
    MR_RETURN_IF_ERROR(take(mmproj, "clip.vision.preproc_image_size", 1, 16'384, spec.longest_side));
    if (spec.longest_side > kMostAlongSide * spec.image_size) {
      return error(Code::corrupt, "clip.vision.preproc_image_size is {}, more than {} tiles of {} pixels",
                   spec.longest_side, kMostAlongSide, spec.image_size);
    }
  }
  return {};
}

/// Gemma 4 without a tower: a token's patches are one, and its matrix says how large.
Status join_patches(const modelfile::Model& mmproj, Spec& spec) {
  spec.patch *= spec.merge;
  spec.merge = 1;
  const modelfile::TensorInfo* const matrix = mmproj.find("v.patch_embd.weight");
  if (matrix == nullptr) return {};
  spec.patch = std::llround(std::sqrt(static_cast<double>(matrix->cols()) / 3));
  if (spec.patch >= 1 && spec.patch <= 256 && 3 * spec.patch * spec.patch == matrix->cols()) return {};
  return error(Code::corrupt, "v.patch_embd.weight has {} columns, no square of pixels in 3 channels", matrix->cols());
}

std::int64_t floor_to(double side, std::int64_t unit) {
  return static_cast<std::int64_t>(std::floor(side / static_cast<double>(unit))) * unit;
}
std::int64_t ceil_to(double side, std::int64_t unit) {
  return static_cast<std::int64_t>(std::ceil(side / static_cast<double>(unit))) * unit;
}

std::int64_t nearest_to(double side, std::int64_t unit) {
  return static_cast<std::int64_t>(std::nearbyint(side / static_cast<double>(unit))) * unit;
}

// The roundings are those of the published code, in double and to even at halves.
Expected<Size> smart(const Spec& spec, double height, double width) {
  const std::int64_t unit = spec.token_side();
  const bool any_ratio = spec.projector == Projector::lfm2;
  if (spec.projector == Projector::glm4v && std::min(height, width) < static_cast<double>(unit)) {
    const double grow = static_cast<double>(unit) / std::min(height, width);
    height = std::floor(height * grow);
    width = std::floor(width * grow);
  }
  if (const double ratio = std::max(height, width) / std::min(height, width); ratio > 200 && !any_ratio) {
    return error(Code::invalid_argument,
                 "the picture is {} x {} pixels, a ratio of {:.0f}; this model takes up to 200: cut the picture", width,
                 height, ratio);
  }
  const std::int64_t least = any_ratio ? unit : 0;
  const Size size = {std::max(least, nearest_to(height, unit)), std::max(least, nearest_to(width, unit))};
  const std::int64_t area = size.height * size.width;
  if (area > spec.most_pixels) {
    const double shrink = std::sqrt(height * width / static_cast<double>(spec.most_pixels));
    return Size{std::max(unit, floor_to(height / shrink, unit)), std::max(unit, floor_to(width / shrink, unit))};
  }
  if (area < spec.least_pixels) {
    const double grow = std::sqrt(static_cast<double>(spec.least_pixels) / (height * width));
    return Size{ceil_to(height * grow, unit), ceil_to(width * grow, unit)};
  }
  return size;
}

Size longest(const Spec& spec, double height, double width) {
  const double ratio = std::max(height, width) / static_cast<double>(spec.image_size);
  if (ratio > 1) {
    height = std::max(1.0, std::floor(height / ratio));
    width = std::max(1.0, std::floor(width / ratio));
  }
  return {ceil_to(height, spec.token_side()), ceil_to(width, spec.token_side())};
}

Size budget(const Spec& spec, double height, double width) {
  const std::int64_t unit = spec.token_side();
  const double most_pixels = static_cast<double>(spec.most_tokens * unit * unit);
  const double factor = std::sqrt(most_pixels / (height * width));
  Size size = {floor_to(factor * height, unit), floor_to(factor * width, unit)};
  const std::int64_t most_side = spec.most_tokens * unit;
  if (size.height == 0) {
    size = {unit, std::min(static_cast<std::int64_t>(std::floor(width / height)) * unit, most_side)};
  } else if (size.width == 0) {
    size = {std::min(static_cast<std::int64_t>(std::floor(height / width)) * unit, most_side), unit};
  }
  return size;
}

/// Smaller where more patches would be whole than the limit has; the view is padded to whole tokens.
Expected<Cut> padded(const Spec& spec, Size size) {
  const std::int64_t most_patches = spec.most_pixels / (spec.patch * spec.patch);
  const auto most = static_cast<double>(most_patches);
  const std::int64_t rows = size.height / spec.patch, cols = size.width / spec.patch;
  const auto patches = static_cast<double>(rows * cols);
  if (patches > most) {
    const double shrink = std::sqrt(most / patches);
    size = {std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(size.height) * shrink)),
            std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(size.width) * shrink))};
  }
  Cut cut;
  cut.pixels = size;
  cut.whole = {ceil_to(static_cast<double>(size.height), spec.token_side()),
               ceil_to(static_cast<double>(size.width), spec.token_side())};
  constexpr std::int64_t kMostSide = 512;  // patches
  if (const std::int64_t side = std::max(cut.whole.height, cut.whole.width) / spec.patch; side >= kMostSide) {
    return error(Code::invalid_argument,
                 "the picture is {} x {} pixels, {} patches along a side; this model takes fewer than {}: cut the "
                 "picture",
                 size.width, size.height, side, kMostSide);
  }
  return cut;
}

/// The whole as one view, of no rule but the resizing.
Cut as_one_view(Size size) {
  Cut cut;
  cut.pixels = cut.whole = size;
  return cut;
}

/// Of all numbers of rows and columns within the limits those whose ratio is nearest the picture's; of several that
/// are equally near, the first, or a later one that is less than twice as large as the picture.
Size nearest_ratio(const Spec& spec, Size size, std::int64_t tile) {
  const double ratio = static_cast<double>(size.width) / static_cast<double>(size.height);
  const auto area = static_cast<double>(size.width * size.height);
  Size best = {1, 1};
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t tiles = spec.least_tiles; tiles <= spec.most_tiles; ++tiles) {
    for (std::int64_t cols = 1; cols <= tiles; ++cols) {
      if (tiles % cols != 0) continue;
      const std::int64_t rows = tiles / cols;
      const double off = std::abs(ratio - static_cast<double>(cols) / static_cast<double>(rows));
      if (off < least || (off == least && area > 0.5 * static_cast<double>(tile * tile * tiles))) best = {rows, cols};
      least = std::min(least, off);
    }
  }
  return best;
}

Cut in_tiles(std::int64_t rows, std::int64_t cols, std::int64_t side, Size whole) {
  Cut cut = as_one_view(whole);
  cut.rows = rows;
  cut.cols = cols;
  cut.tile = {side, side};
  return cut;
}

/// The longer side becomes `most`, the other one an even number; then none is longer than the processor ever makes it.
Size with_longer_side(Size size, std::int64_t most) {
  constexpr std::int64_t kMostEver = 4'096;
  const double ratio = static_cast<double>(size.width) / static_cast<double>(size.height);
  const bool wide = size.width >= size.height;
  const auto other = [&](std::int64_t longer) {
    return static_cast<std::int64_t>(wide ? static_cast<double>(longer) / ratio : static_cast<double>(longer) * ratio);
  };
  std::int64_t longer = most, shorter = other(most);
  shorter = std::max<std::int64_t>(1, shorter + shorter % 2);
  if (longer > kMostEver) {
    const double now = wide ? static_cast<double>(longer) / static_cast<double>(shorter)
                            : static_cast<double>(shorter) / static_cast<double>(longer);
    longer = kMostEver;
    shorter = static_cast<std::int64_t>(wide ? static_cast<double>(longer) / now : static_cast<double>(longer) * now);
    shorter = std::max<std::int64_t>(1, shorter);
  }
  return wide ? Size{shorter, longer} : Size{longer, shorter};
}

Cut covering(const Spec& spec, Size original) {
  const std::int64_t side = spec.image_size;
  const Size before = with_longer_side(original, spec.longest_side);
  const double ratio = static_cast<double>(before.width) / static_cast<double>(before.height);
  const auto tiles = [&](double pixels) { return ceil_to(pixels, side) / side; };
  std::int64_t rows = 0, cols = 0;
  if (before.width >= before.height) {
    cols = tiles(static_cast<double>(before.width));
    rows = tiles(std::floor(static_cast<double>(cols * side) / ratio));
  } else {
    rows = tiles(static_cast<double>(before.height));
    cols = tiles(std::floor(static_cast<double>(rows * side) * ratio));
  }
  const bool several = rows > 1 || cols > 1;
  Cut cut = in_tiles(several ? rows : 0, several ? cols : 0, side, {side, side});
  cut.before = before;
  return cut;
}

}  // namespace

std::string_view projector_name(Projector projector) {
  for (const Named& named : table()) {
    if (named.spec.projector == projector) return named.name;
  }
  return "";
}

Spec usual_spec(Projector projector) {
  for (const Named& named : table()) {
    if (named.spec.projector == projector) return named.spec;
  }
  return {};
}

Expected<Spec> read_spec(const modelfile::Model& mmproj) {
  MR_ASSIGN_OR_RETURN(const std::string type, projector_type(mmproj));
  const auto* const named =
      std::find_if(table().begin(), table().end(), [&](const Named& one) { return one.name == type; });
  if (named == table().end()) {
    std::string known;
    for (const Named& one : table()) known += (known.empty() ? "" : ", ") + std::string(one.name);
    return error(Code::unsupported, "pictures by the projector type '{}' are not supported yet; these are: {}", type,
                 known);
  }
  Spec spec = named->spec;
  MR_RETURN_IF_ERROR(take(mmproj, "clip.vision.patch_size", 1, 256, spec.patch));
  MR_RETURN_IF_ERROR(
      take(mmproj,
           merges_by_factor(spec.projector) ? "clip.vision.projector.scale_factor" : "clip.vision.spatial_merge_size",
           1, 16, spec.merge));
  if (spec.resize == Resize::square || spec.resize == Resize::longest) {
    MR_RETURN_IF_ERROR(take(mmproj, "clip.vision.image_size", 1, 16'384, spec.image_size));
  }
  // Patches of 14 pixels leave some of a tile of 384 over, which the tower does not see.
  const std::int64_t over = spec.tiling == Tiling::covering ? spec.image_size % spec.patch : 0;
  if (spec.resize == Resize::square && (spec.image_size - over) % spec.token_side() != 0) {
    return error(Code::corrupt, "clip.vision.image_size is {}, no multiple of a token's {} pixels", spec.image_size,
                 spec.token_side());
  }
  MR_RETURN_IF_ERROR(take_tiles(mmproj, spec));
  constexpr std::int64_t kMostArea = std::int64_t{1} << 28;
  MR_RETURN_IF_ERROR(take(mmproj, "clip.vision.image_min_pixels", 1, kMostArea, spec.least_pixels));
  MR_RETURN_IF_ERROR(
      take(mmproj, "clip.vision.image_max_pixels", spec.token_side() * spec.token_side(), kMostArea, spec.most_pixels));
  if (spec.resize == Resize::smart && spec.least_pixels > spec.most_pixels) {
    return error(Code::corrupt, "clip.vision.image_min_pixels is {}, more than image_max_pixels, {}", spec.least_pixels,
                 spec.most_pixels);
  }
  MR_RETURN_IF_ERROR(take(mmproj, "clip.vision.image_mean", false, spec.mean));
  MR_RETURN_IF_ERROR(take(mmproj, "clip.vision.image_std", true, spec.deviation));
  // Gemma 4's processor leaves pixels in [0, 1], which its files' mean and deviation say; its tower then maps them to
  // [-1, 1], and that is done here.
  if (spec.projector == Projector::gemma4) spec.mean = spec.deviation = kHalf;
  if (spec.projector == Projector::gemma4u) MR_RETURN_IF_ERROR(join_patches(mmproj, spec));
  return spec;
}

Expected<Size> fitted(const Spec& spec, Size original) {
  if (original.height <= 0 || original.width <= 0) {
    return error(Code::invalid_argument, "the picture is {} x {} pixels: it is empty", original.width, original.height);
  }
  const auto height = static_cast<double>(original.height), width = static_cast<double>(original.width);
  switch (spec.resize) {
    case Resize::smart:
      return smart(spec, height, width);
    case Resize::square:
      return Size{spec.image_size, spec.image_size};
    case Resize::longest:
      return longest(spec, height, width);
    case Resize::budget:
      return budget(spec, height, width);
    case Resize::padded: {
      MR_ASSIGN_OR_RETURN(const Cut cut, padded(spec, original));
      return cut.whole;
    }
  }
  return error(Code::internal, "a rule of resizing has no code");
}

Expected<Cut> cut(const Spec& spec, Size original) {
  MR_ASSIGN_OR_RETURN(const Size whole, fitted(spec, original));
  switch (spec.tiling) {
    case Tiling::none:
      return spec.resize == Resize::padded ? padded(spec, original) : as_one_view(whole);
    case Tiling::nearest: {
      const Size tiles = nearest_ratio(spec, original, spec.image_size);
      if (tiles.height * tiles.width == 1) return as_one_view(whole);
      return in_tiles(tiles.height, tiles.width, spec.image_size, whole);
    }
    case Tiling::covering:
      return covering(spec, original);
    case Tiling::large: {
      const auto rounded = [&](std::int64_t side) {
        return std::max(spec.patch, nearest_to(static_cast<double>(side), spec.token_side()));
      };
      if (rounded(original.height) * rounded(original.width) <= 2 * spec.most_pixels) return as_one_view(whole);
      const Size tiles = nearest_ratio(spec, original, spec.tile);
      return in_tiles(tiles.height, tiles.width, spec.tile, whole);
    }
  }
  return error(Code::internal, "a rule of cutting has no code");
}

Grid grid(const Spec& spec, Size size) {
  return {size.height / spec.patch / spec.merge, size.width / spec.patch / spec.merge};
}

std::vector<Grid> grids(const Spec& spec, const Cut& cut) {
  std::vector<Grid> grids;
  for (std::int64_t view = 0; view < cut.views(); ++view) grids.push_back(grid(spec, cut.view(view)));
  return grids;
}

Place patch_place(const Spec& spec, Grid tokens, std::int64_t index) {
  const std::int64_t cell = spec.merge * spec.merge, token = index / cell, within = index % cell;
  return {token / tokens.cols * spec.merge + within / spec.merge,
          token % tokens.cols * spec.merge + within % spec.merge};
}

}  // namespace millrace::vision

#include "vision/spec.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

namespace millrace::vision {
namespace {

constexpr std::array<float, 3> kClipMean = {0.48145466f, 0.4578275f, 0.40821073f};
constexpr std::array<float, 3> kClipDeviation = {0.26862954f, 0.26130258f, 0.27577711f};
constexpr std::array<float, 3> kHalf = {0.5f, 0.5f, 0.5f};
constexpr std::array<float, 3> kNone = {0, 0, 0}, kOne = {1, 1, 1};

struct Named {
  std::string_view name;  // clip.projector_type
  Spec spec;              // where the file has no key
};

const std::array<Named, 7>& table() {
  static const std::array<Named, 7> specs = {{
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

// The roundings are those of the published code, in double and to even at halves.
Expected<Size> smart(const Spec& spec, double height, double width) {
  if (const double ratio = std::max(height, width) / std::min(height, width); ratio > 200) {
    return error(Code::invalid_argument,
                 "the picture is {} x {} pixels, a ratio of {:.0f}; this model takes up to 200: cut the picture", width,
                 height, ratio);
  }
  const std::int64_t unit = spec.token_side();
  const auto nearest = [&](double side) {
    return static_cast<std::int64_t>(std::nearbyint(side / static_cast<double>(unit))) * unit;
  };
  const Size size = {nearest(height), nearest(width)};
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
  const bool scaled = spec.projector == Projector::gemma3 || spec.projector == Projector::gemma4 ||
                      spec.projector == Projector::gemma4u;
  MR_RETURN_IF_ERROR(take(mmproj, scaled ? "clip.vision.projector.scale_factor" : "clip.vision.spatial_merge_size", 1,
                          16, spec.merge));
  if (spec.resize == Resize::square || spec.resize == Resize::longest) {
    MR_RETURN_IF_ERROR(take(mmproj, "clip.vision.image_size", 1, 16'384, spec.image_size));
  }
  if (spec.resize == Resize::square && spec.image_size % spec.token_side() != 0) {
    return error(Code::corrupt, "clip.vision.image_size is {}, no multiple of a token's {} pixels", spec.image_size,
                 spec.token_side());
  }
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
  }
  return error(Code::internal, "a rule of resizing has no code");
}

Grid grid(const Spec& spec, Size size) { return {size.height / spec.token_side(), size.width / spec.token_side()}; }

Place patch_place(const Spec& spec, Grid tokens, std::int64_t index) {
  const std::int64_t cell = spec.merge * spec.merge, token = index / cell, within = index % cell;
  return {token / tokens.cols * spec.merge + within / spec.merge,
          token % tokens.cols * spec.merge + within % spec.merge};
}

}  // namespace millrace::vision

#include "image/resample.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "image/codecs.h"

namespace millrace::image {
namespace {

constexpr int kWeightBits = 22;

double sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

/// How far a filter reaches, in pixels of a picture that is not made smaller.
double reach(Filter filter) {
  switch (filter) {
    case Filter::bilinear:
      return 1;
    case Filter::bicubic:
      return 2;
    case Filter::lanczos:
      return 3;
  }
  return 1;
}

double weight(Filter filter, double x) {
  x = std::abs(x);
  if (x >= reach(filter)) return 0;
  switch (filter) {
    case Filter::bilinear:
      return 1 - x;
    case Filter::bicubic: {
      constexpr double kA = -0.5;
      if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
      return (((x - 5) * x + 8) * x - 4) * kA;
    }
    case Filter::lanczos:
      return sinc(x) * sinc(x / 3);
  }
  return 0;
}

/// Along one side: which pixels each new pixel is made of, and with what weights.
struct Side {
  struct Reach {
    std::int64_t first = 0, count = 0;
    std::size_t weights = 0;  // index of its first
  };
  std::vector<Reach> reaches;
  std::vector<std::int32_t> weights;
  GrantLease memory;
};

Expected<Side> side(std::int64_t from, std::int64_t to, Filter filter, WorkGrant* grant) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), widened = std::max(scale, 1.0);
  const double support = reach(filter) * widened, narrow = 1.0 / widened;
  const auto most = static_cast<std::uint64_t>(std::ceil(support)) * 2 + 1;
  Side side;
  const auto pixels = static_cast<std::uint64_t>(to);
  if (!side.memory.take(grant, pixels * (sizeof(Side::Reach) + most * sizeof(std::int32_t)) + most * sizeof(double))) {
    return out_of_memory(from, to);
  }
  side.reaches.reserve(pixels);
  side.weights.reserve(pixels * most);
  std::vector<double> exact;
  exact.reserve(most);
  for (std::int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const double begins = centre - support + 0.5, ends = centre + support + 0.5;  // cut off, not rounded
    const auto first = std::max<std::int64_t>(static_cast<std::int64_t>(begins), 0);
    const auto end = std::min(static_cast<std::int64_t>(ends), from);
    exact.clear();
    double sum = 0;
    for (std::int64_t at = first; at < end; ++at) {
      exact.push_back(weight(filter, (static_cast<double>(at) - centre + 0.5) * narrow));
      sum += exact.back();
    }
    side.reaches.push_back({first, end - first, side.weights.size()});
    for (const double one : exact) {
      const double scaled = (sum != 0 ? one / sum : one) * (1 << kWeightBits);
      side.weights.push_back(static_cast<std::int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5));
    }
  }
  return side;
}

std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

bool gone(WorkGrant* grant) { return grant != nullptr && grant->cancelled(); }

Expected<Image> across(const Image& picture, std::int64_t width, Filter filter, WorkGrant* grant) {
  MR_ASSIGN_OR_RETURN(const Side cols, side(picture.width, width, filter, grant));
  MR_ASSIGN_OR_RETURN(Image narrow, blank(width, picture.height, 3, grant));
  std::uint8_t* to = narrow.rgb.data();
  for (std::int64_t y = 0; y < picture.height; ++y) {
    if (gone(grant)) return decoding_cancelled();
    const std::uint8_t* const row = picture.rgb.data() + static_cast<std::size_t>(y * picture.width * 3);
    for (const Side::Reach& reach : cols.reaches) {
      std::int32_t red = kHalf, green = kHalf, blue = kHalf;
      const std::uint8_t* from = row + reach.first * 3;
      const std::int32_t* weights = cols.weights.data() + reach.weights;
      for (std::int64_t i = 0; i < reach.count; ++i, from += 3) {
        red += from[0] * weights[i];
        green += from[1] * weights[i];
        blue += from[2] * weights[i];
      }
      *to++ = rounded(red);
      *to++ = rounded(green);
      *to++ = rounded(blue);
    }
  }
  return narrow;
}

Expected<Image> down(const Image& picture, std::int64_t height, Filter filter, WorkGrant* grant) {
  MR_ASSIGN_OR_RETURN(const Side rows, side(picture.height, height, filter, grant));
  MR_ASSIGN_OR_RETURN(Image low, blank(picture.width, height, 3, grant));
  const auto row_bytes = static_cast<std::size_t>(picture.width * 3);
  GrantLease sums_memory;
  if (!sums_memory.take(grant, row_bytes * sizeof(std::int32_t))) return out_of_memory(picture.width, height);
  std::vector<std::int32_t> sums(row_bytes);
  std::uint8_t* to = low.rgb.data();
  for (const Side::Reach& reach : rows.reaches) {
    if (gone(grant)) return decoding_cancelled();
    std::fill(sums.begin(), sums.end(), kHalf);
    for (std::int64_t i = 0; i < reach.count; ++i) {
      const std::uint8_t* const row = picture.rgb.data() + static_cast<std::size_t>(reach.first + i) * row_bytes;
      const std::int32_t weight = rows.weights[reach.weights + static_cast<std::size_t>(i)];
      for (std::size_t x = 0; x < row_bytes; ++x) sums[x] += row[x] * weight;
    }
    for (std::size_t x = 0; x < row_bytes; ++x) *to++ = rounded(sums[x]);
  }
  return low;
}

Expected<Image> copy(const Image& picture, WorkGrant* grant) {
  MR_ASSIGN_OR_RETURN(Image same, blank(picture.width, picture.height, 3, grant));
  std::copy(picture.rgb.begin(), picture.rgb.end(), same.rgb.begin());
  return same;
}

}  // namespace

Expected<Image> resample(const Image& picture, std::int64_t width, std::int64_t height, Filter filter,
                         WorkGrant* grant) {
  if (width == picture.width) {
    return height == picture.height ? copy(picture, grant) : down(picture, height, filter, grant);
  }
  MR_ASSIGN_OR_RETURN(Image narrow, across(picture, width, filter, grant));
  if (height == picture.height) return narrow;
  return down(narrow, height, filter, grant);
}

}  // namespace millrace::image

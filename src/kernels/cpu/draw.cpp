#include "kernels/draw.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kernels/kernels.h"

namespace millrace::kernels {
namespace {

std::uint64_t weight(float below) {
  return below >= kLeastBelow ? static_cast<std::uint64_t>(exp_f32(below) * kDrawUnit) : 0;
}

/// Orders as the logits do, which are not NaN.
std::uint32_t order_of(float logit) {
  const auto bits = std::bit_cast<std::uint32_t>(logit == 0 ? 0.0f : logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The order of the last logit, from the largest on, with which `needed` of the weight is reached. From the top, eight
/// bits at a time: logits that share all bits so far are weighed by their next eight.
std::uint32_t boundary(std::span<const float> logits, std::span<const std::uint64_t> weights, std::uint64_t needed) {
  std::uint32_t prefix = 0, known = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::array<std::uint64_t, 256> bins{};
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const std::uint32_t order = order_of(logits[i]);
      if (weights[i] > 0 && (order & known) == prefix) bins[(order >> shift) & 255] += weights[i];
    }
    std::uint32_t digit = 255;
    while (digit > 0 && bins[digit] < needed) needed -= bins[digit--];
    prefix |= digit << shift;
    known |= 255u << shift;
  }
  return prefix;
}

}  // namespace

std::int32_t draw(std::span<const float> logits, const DrawRule& rule, std::vector<std::uint64_t>& scratch) {
  float best = -INFINITY;
  std::size_t first = 0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > best) best = logits[i], first = i;
  scratch.resize(logits.size());
  std::uint32_t least = 0;
  if (rule.top_p < 1) {
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) total += scratch[i] = weight(logits[i] - best);
    const double share = double{rule.top_p} * static_cast<double>(total);
    least = boundary(logits, scratch, std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(share))));
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float below = logits[i] - best;
    const bool kept = order_of(logits[i]) >= least && (rule.min_p <= 0 || exp_f32(below) >= rule.min_p);
    total += scratch[i] = kept ? weight(below / rule.temperature) : 0;
  }
  __extension__ using Product = unsigned __int128;  // of 53 bits by 60 at most
  auto left = static_cast<std::uint64_t>(static_cast<Product>(rule.point) * total >> 53);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (left < scratch[i]) return static_cast<std::int32_t>(i);
    left -= scratch[i];
  }
  return static_cast<std::int32_t>(first);
}

}  // namespace millrace::kernels

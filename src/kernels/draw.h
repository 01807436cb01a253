// The draw of a token from all of a row's logits. Weights are whole numbers and so are their sums, whose order
// therefore doesn't matter: a processor and a GPU pick the same token (draw() here, kernels/gpu/draw.h there).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::kernels {

struct DrawRule {
  float temperature = 0;    // 0: nothing is drawn
  float top_p = 1;          // 1: off
  float min_p = 0;          // 0: off
  std::uint64_t point = 0;  // where to draw, in [0, 2^53)
};
static_assert(sizeof(DrawRule) == 24);

/// What one token weighs whose logit lies so far below the largest: floor(2^40 e^below), and nothing where that is less
/// than 1 or not a number.
constexpr float kLeastBelow = -28.0f;
constexpr float kDrawUnit = 0x1p40f;

/// The token at rule.point of what the tokens weigh one behind the other. Top-p keeps the likeliest tokens that hold
/// the share of the weight at temperature 1, and all that are as likely as the last of them; min-p drops what has less
/// than that share of the likeliest one's probability; then the temperature. A logit of NaN or -infinity is never
/// drawn; where no other is finite, it is the largest logit's first token. `scratch`: 8 bytes a logit.
/// REQUIRES: logits not empty, rule.temperature > 0.
std::int32_t draw(std::span<const float> logits, const DrawRule& rule, std::vector<std::uint64_t>& scratch);

}  // namespace millrace::kernels

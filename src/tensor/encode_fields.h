// Blocks of one bit or two a weight beside one scale (Q1_0, Q2_0): part of encode_body.h, for any width of vectors.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tensor/blocks.h"
#include "tensor/encode_grid.h"
#include "tensor/half.h"

namespace millrace {
namespace {

/// Signs: the scale that leaves least error is the mean magnitude.
void encode_block(const BlockWeights<kBlockQ1_0>& weights, BlockQ1_0& block) {
  double magnitudes = 0, all = 0;
  for (int i = 0; i < kBlockQ1_0; ++i) {
    magnitudes += static_cast<double>(weights.w[i]) * std::fabs(weights.x[i]);
    all += weights.w[i];
    if (weights.x[i] >= 0) block.qs[i / 8] = static_cast<std::uint8_t>(block.qs[i / 8] | 1 << i % 8);
  }
  block.d = float_to_half(static_cast<float>(std::min(magnitudes / all, 65504.0)));
}

constexpr int kLowestQ2_0 = -1, kHighestQ2_0 = 2;

/// The levels of x at a step, and what they explain of the squares with the step that then is best.
struct LevelsQ2_0 {
  std::array<std::int8_t, kBlockQ2_0> q;
  double gain = 0;
  float step = 0;

  LevelsQ2_0(const BlockWeights<kBlockQ2_0>& weights, float at) {
    const float inverse = 1 / at;
    double product = 0, squares = 0;
    for (int i = 0; i < kBlockQ2_0; ++i) {
      const float level = std::clamp(std::nearbyint(weights.x[i] * inverse), static_cast<float>(kLowestQ2_0),
                                     static_cast<float>(kHighestQ2_0));
      q[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(level);
      product += static_cast<double>(weights.w[i]) * level * weights.x[i];
      squares += static_cast<double>(weights.w[i]) * level * level;
    }
    if (squares == 0) return;
    gain = product * product / squares;
    step = static_cast<float>(product / squares);
  }
};

/// Of steps of either sign, between that at which the largest is the outermost level and a quarter of the largest, the
/// best; then solved for and tried again.
void encode_block(const BlockWeights<kBlockQ2_0>& weights, BlockQ2_0& block) {
  constexpr int kTries = 16, kAgain = 2;
  float largest = 0;
  for (const float x : weights.x) largest = std::max(largest, std::fabs(x));
  double gain = 0;
  float best = 0;
  const auto take = [&](float step) {
    if (!std::isnormal(step)) return;
    const LevelsQ2_0 levels(weights, step);
    if (levels.gain <= gain) return;
    gain = levels.gain;
    best = levels.step;
  };
  for (const float sign : {1.0F, -1.0F})
    for (int i = 0; i < kTries; ++i) take(sign * largest * static_cast<float>(kTries - i + 5) / (kTries + 5));
  for (int i = 0; i < kAgain; ++i) take(best);
  block.d = float_to_half(std::clamp(best, -65504.0F, 65504.0F));
  const float stored = half_to_float(block.d);
  if (!std::isnormal(stored)) {
    block.d = 0;
    return;
  }
  const LevelsQ2_0 levels(weights, stored);
  for (int i = 0; i < kBlockQ2_0; ++i) {
    const int field = levels.q[static_cast<std::size_t>(i)] - kLowestQ2_0;
    block.qs[i / 4] = static_cast<std::uint8_t>(block.qs[i / 4] | field << 2 * (i % 4));
  }
}

template <typename Block, int kElements>
void encode_fields(const float* x, const float* importance, std::int64_t count, std::byte* out) {
  auto* const blocks = reinterpret_cast<Block*>(out);
  for (std::int64_t b = 0; b < count / kElements; ++b) {
    std::memset(&blocks[b], 0, sizeof(Block));
    encode_block(
        BlockWeights<kElements>(x + b * kElements, importance == nullptr ? nullptr : importance + b * kElements),
        blocks[b]);
  }
}

}  // namespace
}  // namespace millrace

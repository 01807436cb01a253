// How the experts of a mixture that are not in VRAM are shared out, where some are read across the link and the
// processor computes with the others: the rule of every side that must know it (the device's kernel, the processor's
// share, predictions). Thread-safety: a pure function.
#pragma once

#include <cstdint>

#include "base/both_sides.h"

namespace millrace::kernels {

/// Of so many experts of a layer, those that the GPU reads: as many as let both sides end soonest, the link having
/// `permille` of 1000 parts of the rate of both. An expert is one side's as a whole, so of few the nearest number is
/// not the best: of three, one across a link that has a fifth keeps the GPU longer than all three keep the processor.
MR_BOTH constexpr std::int32_t claimed_of(std::int32_t missed, std::int32_t permille) {
  const std::int32_t least = missed * permille / 1000;
  return (least + 1) * (1000 - permille) < (missed - least) * permille ? least + 1 : least;
}

}  // namespace millrace::kernels

// The contract of what low-rank adapters (exec/adapters.h) add to products. Rules as in ops.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/gpu/ops.h"
#include "tensor/dtype.h"

namespace millrace::kernels::gpu {

/// Partial sums of a row of A times one of x: number i has the chunks of columns i, i + kLowRankSums, ... in ascending
/// order.
constexpr int kLowRankSums = 256, kLowRankChunk = 8;
constexpr int kMostGateRanks = 64;  // of a part whose LowRankCall::gated is set

/// Of each part, y[r] += B (scales[r] * factor * A x[r]), for products that one adapter changes and that read the same
/// rows. A row whose scale is 0 keeps its bits, and no row's depend on what others go through. A sum over columns adds
/// its partial sums by a tree in each 32 (16, 8, 4, 2, 1), then those in ascending order; one over the rank is a chain
/// of fma from 0, and then added to y. Apart, for Product::addend: it becomes y, and -0 does where the scale is 0,
/// which changes nothing that it is added to. Of prompts' rows, whose products read bfloat16 too, sums have the
/// tensor cores' order, of floats of 19 bits.
struct LowRankCall {
  struct Part {
    const std::byte* a = nullptr;  // [rank, cols]
    DType a_dtype = DType::f32;    // F32, F16 or BF16
    const float* b = nullptr;      // turned: [rank, rows], a row b_stride floats behind the one before
    std::int64_t b_stride = 0;
    std::int32_t rank = 0, rows = 0;
    float factor = 1;
    float* y = nullptr;  // [x_rows, rows], likewise
    std::int64_t y_stride = 0;
  };
  Part parts[kMostProducts];
  int count = 0;
  bool apart = false;
  const float* x = nullptr;      // [x_rows, cols]
  const Bf16* x_bf16 = nullptr;  // of prompts, instead
  std::int32_t x_rows = 0, cols = 0;
  const float* scales = nullptr;  // [x_rows]
  float* low = nullptr;           // scratch: [x_rows, the parts' ranks together]
  /// Of prompts, where the two parts are a gate's and an up's: their y stay, and what comes of the sums lands here,
  /// [x_rows, rows], rounded; or none. Columns are even, and ranks at most kMostGateRanks.
  Bf16* gated = nullptr;
  Activation activation = Activation::silu;
  float limit = 0;  // of Activation::limited and bounded
  /// Becomes 1 once the kernels before have ended, for MatmulCall::ready; or none.
  std::int32_t* ready = nullptr;
};
Status add_low_rank(const LowRankCall& call, device::StreamRef stream);

}  // namespace millrace::kernels::gpu

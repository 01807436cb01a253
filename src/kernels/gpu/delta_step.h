// A gated delta net of one row of each sequence, between its products, in one launch. Rules as in ops.h.
#pragma once

#include <cstdint>

#include "kernels/gpu/heads.h"
#include "kernels/gpu/recurrent.h"

namespace millrace::kernels::gpu {

/// time_step() that leaves decays alone, convolve(), l2_norm_heads() of queries and keys, delta_rule() and gated_norm()
/// of what it gives, with the bits of one after the other. What these change in place, and what the rule gives, is not
/// written: only states and the result are.
/// REQUIRES: each run has one row, or none and nothing to leave; it leaves its state elsewhere than it found it; a head
/// has one decay.
struct DeltaStepCall {
  ConvolveCall convolution;  // taps: kDeltaTaps; x: not written
  DeltaRuleCall rule;        // of the same runs; qkv and out: not read; decay: what becomes the decays
  const std::byte *const *a = nullptr, *const *a_bias = nullptr;  // of time_step()
  float eps = 0;                                                  // of the norm of queries and keys
  GatedNormCall norm;                                             // x: not read
};
constexpr std::int32_t kDeltaTaps = 4, kMostDeltaKeys = 128, kMostDeltaValues = 128;
Status delta_step(const DeltaStepCall& call, device::StreamRef stream);

}  // namespace millrace::kernels::gpu

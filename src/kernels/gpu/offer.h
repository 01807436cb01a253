// What the kernels of this program's GPU part do, where kinds of GPUs differ: what they lack is refused in words before
// weights are loaded (exec/gpu/executor.h, check_gpu), and no pass reaches a launch that is not there.
// Thread-safety: constants.
#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace millrace::kernels::gpu {

struct Offer {
  std::string_view name;      // in messages: "the GPU part"
  std::string_view numerics;  // changes when any bit changes: kept prompts and ranks compare it
  // Groups of ops that not every kind has.
  bool mixed_products = true;  // of mixtures, multiplied by scales of their own, or with gates and ups of two types
  bool delta_step = true;      // a delta net of single rows in one launch (delta_step.h)
  bool channel_decays = true;  // a delta rule with a decay for each key, and what makes its rows
  bool latents = true;         // attention over latents, heads' own matrices
  bool whole_rows = true;      // rows that all see each other: towers
  bool several = true;         // what several GPUs exchange
  bool host_rows = true;       // what the GPU and the processor exchange in a pass
  bool adapters = true;        // low-rank ones (low_rank.h)
  bool rare_layers = true;     // scores with caps and slopes, chunks of positions, xIELU, SparseMixer, largest(), SiLU
                               // with limits
  std::int64_t head_step = 1;  // attention's heads have a multiple of so many channels
  bool (*reads)(DType weights) = [](DType) { return true; };
  bool (*keeps)(DType kv) = [](DType) { return true; };
};
const Offer& offer();

}  // namespace millrace::kernels::gpu

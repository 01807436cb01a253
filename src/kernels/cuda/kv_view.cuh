// Where a view's blocks hold what kernels look for.
#pragma once

#include <cstdint>

#include "kernels/cuda/launchers.h"

namespace millrace::kernels::cuda {

constexpr int kKvBlock = 64;  // tokens of a block of the cache

/// Where the tables have the block that holds a position of `sequence`.
__device__ __forceinline__ std::int64_t kv_entry(const KvView& kv, int sequence, int position) {
  return static_cast<std::int64_t>(sequence) * kv.max_blocks + position / kKvBlock;
}

/// Bytes from a block's start to head `kv_head`, of keys or of values.
__device__ __forceinline__ std::int64_t kv_part(const KvView::Blocks& blocks, bool is_key, int kv_head) {
  return (is_key ? blocks.k_offset : blocks.v_offset) + kv_head * blocks.head_bytes;
}

}  // namespace millrace::kernels::cuda

// matmul_segments on AVX-512 straight from the blocks of the file, for the dtypes that matter most.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace millrace::kernels::avx512 {

/// What activations lie arranged at the start of matmul_segments' workspace, and how: each way of arranging them has a
/// number of its own.
struct ArrangedSegments {
  std::uint64_t name = 0;  // MatmulArgs::x_name; 0: none that may be used again
  std::int64_t arrangement = 0, rows = 0, cols = 0, first = 0;
  friend bool operator==(const ArrangedSegments&, const ArrangedSegments&) = default;
};
constexpr std::int64_t kBlocksArrangement = 1 << 20;  // and the dtype

/// matmul_segments(). False if it has no kernel for the dtype (and has done nothing).
bool segments_blocks(const MatmulArgs& args);

std::int64_t segments_blocks_workspace_bytes(std::int64_t cols);

}  // namespace millrace::kernels::avx512

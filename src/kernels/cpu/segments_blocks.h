// matmul_segments on AVX-512 straight from the blocks of the file, for the dtypes that matter most.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace millrace::kernels::avx512 {

/// Of segments::Arranged: this number and the dtype.
constexpr std::int64_t kBlocksArrangement = 1 << 20;

/// matmul_segments(). False if it has no kernel for the dtype (and has done nothing).
bool segments_blocks(const MatmulArgs& args);

std::int64_t segments_blocks_workspace_bytes(std::int64_t cols);

}  // namespace millrace::kernels::avx512

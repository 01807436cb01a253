// matmul_segments straight from the blocks of the file, for the dtypes that matter most.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace millrace::kernels::segments {

/// Of segments::Arranged: this number and the dtype.
constexpr std::int64_t kBlocksArrangement = 1 << 20;

}  // namespace millrace::kernels::segments

// Declares what each instruction set has.
//   segments_blocks                  matmul_segments(). False if it has no kernel for the dtype (and has done nothing).
//   segments_blocks_workspace_bytes  what its workspace must hold.
#define MILLRACE_SEGMENTS_BLOCKS_DECLARATIONS   \
  bool segments_blocks(const MatmulArgs& args); \
  std::int64_t segments_blocks_workspace_bytes(std::int64_t cols);

namespace millrace::kernels::avx2 {
MILLRACE_SEGMENTS_BLOCKS_DECLARATIONS
}
namespace millrace::kernels::avx_vnni {
MILLRACE_SEGMENTS_BLOCKS_DECLARATIONS
}
namespace millrace::kernels::avx512 {
MILLRACE_SEGMENTS_BLOCKS_DECLARATIONS
}

#undef MILLRACE_SEGMENTS_BLOCKS_DECLARATIONS

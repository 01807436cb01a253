// Products with few x rows, straight from the blocks of the file.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace millrace::kernels::avx512 {

/// x rows that matmul_few takes.
constexpr std::int64_t kFewRows = 8;

/// What x is arranged in a workspace, at its start.
struct Arranged {
  std::uint64_t name = 0;  // MatmulArgs::x_name; 0: none that may be used again
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  std::int64_t first = 0;  // row of x; more rows are the first ones, in order
  friend bool operator==(const Arranged&, const Arranged&) = default;
};
constexpr std::int64_t kArrangedBytes = 64;

/// matmul() for args.x_rows <= kFewRows, its own workspace behind the first kArrangedBytes. False if it has no kernel
/// for the dtype (and has done nothing).
bool matmul_few(const MatmulArgs& args);

std::int64_t matmul_few_workspace_bytes(std::int64_t cols);

}  // namespace millrace::kernels::avx512

// The same on AVX2, without and with AVX-VNNI: the workspace begins with segments::Arranged (arranged_segments.h), and
// some dtypes' products with several rows are left to panels, too.
#define MILLRACE_MATMUL_FEW_DECLARATIONS   \
  constexpr std::int64_t kFewRows = 8;     \
  bool matmul_few(const MatmulArgs& args); \
  std::int64_t matmul_few_workspace_bytes(std::int64_t cols);

namespace millrace::kernels::avx2 {
MILLRACE_MATMUL_FEW_DECLARATIONS
}
namespace millrace::kernels::avx_vnni {
MILLRACE_MATMUL_FEW_DECLARATIONS
}

#undef MILLRACE_MATMUL_FEW_DECLARATIONS

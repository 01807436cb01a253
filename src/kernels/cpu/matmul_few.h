// Products with one to three x rows, straight from the blocks of the file, for the dtypes that matter most.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace millrace::kernels::avx512 {

/// x rows that matmul_few takes.
constexpr std::int64_t kFewRows = 3;

/// matmul() for args.x_rows <= kFewRows. False if it has no kernel for the dtype (and has done nothing).
bool matmul_few(const MatmulArgs& args);

std::int64_t matmul_few_workspace_bytes(std::int64_t cols);

}  // namespace millrace::kernels::avx512

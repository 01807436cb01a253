// An indexer's scores on the f16 tensor cores, for rows of prompts; for indexer.cu. Contract: indexer.h.
#pragma once

#include <cstddef>

#include "kernels/cuda/launchers.h"

namespace millrace::kernels::cuda {

/// The rows of one launch, and where their scores go.
struct ScoreArgs {
  ChooseKeysCall call;
  int first_row;  // of the launch
  int stride;     // floats between rows' scores
  float* scores;  // [rows of the launch, stride]
};

/// The index keys of the block that holds a position: [dim, kKvBlock].
__device__ __forceinline__ const std::byte* index_block(const IndexView& index, int sequence, int position) {
  constexpr int kTokens = 64;
  return index.table[static_cast<std::int64_t>(sequence) * index.max_blocks + position / kTokens] + index.offset;
}

/// Whether scores of such a call go this way.
bool index_tiles_take(const ChooseKeysCall& call);
/// Bytes of a row's queries as factors.
constexpr std::size_t kIndexFactorBytes = 64 * (2 * 128 * 2 + 4);
/// factors: [rows, kIndexFactorBytes], 256-byte aligned. REQUIRES: index_tiles_take(args.call).
cudaError_t index_tiles(const ScoreArgs& args, std::byte* factors, int rows, cudaStream_t stream);

}  // namespace millrace::kernels::cuda

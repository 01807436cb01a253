// What the files of the CPU executor's attention share: a call's arguments, and the work on one tile of it.
#pragma once

#include <cstdint>

#include "exec/cpu_executor.h"

namespace millrace::exec {

struct CpuExecutor::AttentionCall {
  Attention attention;
  std::int64_t layer = 0, group = 0, slot_floats = 0;
  const float* q = nullptr;  // [rows, heads, head_dim]
  std::int64_t q_stride = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  const float* sinks = nullptr;  // [heads], or null
};

/// A tile of rows and one KV head, with the chunks of keys it sees and its partial results.
struct CpuExecutor::AttentionPair {
  AttentionTile tile;
  std::int64_t head = 0;  // of K and V
  std::int64_t first_chunk = 0, chunks = 0, queries = 0;
  std::int64_t first_block = 0, last_block = 0;
  float *acc = nullptr, *max = nullptr, *sum = nullptr;
};

}  // namespace millrace::exec

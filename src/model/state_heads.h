// The keys of heads that keep a matrix as their state, as delta nets and Mamba-2 share them ("ssm.*").
#pragma once

#include <cstdint>

#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::model {

struct StateHeads {
  std::int64_t taps = 0;              // of the convolution before them
  std::int64_t heads = 0;             // that keep a state each
  std::int64_t groups = 0;            // of heads that share what writes; divides heads
  std::int64_t keys = 0, values = 0;  // a state's dims
};

/// Errors: not_found, corrupt, unsupported (keys odd, or values no multiple of `lanes`), with the key's name.
Expected<StateHeads> read_state_heads(const modelfile::Model& file, std::int64_t lanes);

}  // namespace millrace::model

// Writes the data of all tensors with many threads and large writes, as fast as the disk takes them.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "modelfile/gguf_writer.h"
#include "synth-model/pool.h"
#include "synth-model/shapes.h"

namespace millrace::synth {

/// Covers every byte of the writer's data sections; shows a bar on stderr when it takes longer than a second.
/// REQUIRES: writer.begin() has succeeded with exactly `tensors`. `threads` >= 1. Errors: io_error (the first one).
Status fill_tensors(modelfile::Writer& writer, std::span<const Tensor> tensors, const Pools& pools, std::uint64_t seed,
                    int threads);

}  // namespace millrace::synth

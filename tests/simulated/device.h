// Simulated devices: VRAM is an arena of host memory with a cap, a stream is a thread that works off a queue, a graph
// is a list of what was queued, and kernels are the processor's, in the GPU's order of sums where another processor
// must have its bits. So whatever lies above the driver runs as it does on a GPU, on any machine: placement, streaming,
// expert slots, captured graphs, shards, caps. Times mean nothing.
//
// MILLRACE_SIMULATED_GPUS of the environment: how many there are (1). MILLRACE_SIMULATED_VRAM: MiB of each (6144).
// Thread-safe as CUDA's runtime is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace millrace::simulated {

/// Puts work on a stream, or into the graph that the stream is captured into. The null stream works at once.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

/// A kernel: its call by value, then what it computes.
template <typename Call, typename Work>
cudaError_t launch(cudaStream_t stream, const Call& call, Work work) {
  return enqueue(stream, [call, work] { work(call); });
}

/// Takes bytes of the present device's memory, or gives them back. False: it has not so many.
bool take(int device, std::uint64_t bytes);
void give(int device, std::uint64_t bytes);

}  // namespace millrace::simulated

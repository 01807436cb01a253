// Simulated devices: VRAM is an arena of host memory with a cap, a stream is a thread that works off a queue, a
// recorded pass is a list of what was queued, and kernels are the processor's, in the GPU's order of sums where another
// processor must have its bits. They stand behind device/device.h and kernels/gpu in CUDA's place, so that whatever
// lies above runs as it does on a GPU, on any machine: placement, streaming, expert slots, recorded passes, shards,
// caps. Times mean nothing.
//
// MILLRACE_SIMULATED_GPUS of the environment: how many there are (1). MILLRACE_SIMULATED_VRAM: MiB of each (6144).
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/status.h"
#include "device/device.h"

namespace millrace::simulated {

/// Puts work on a stream, or into the pass that is recorded from it. No stream: it is done at once.
Status enqueue(device::StreamRef stream, std::function<void()> work);

/// A kernel: its call by value, then what it computes.
template <typename Call, typename Work>
Status launch(device::StreamRef stream, const Call& call, Work work) {
  return enqueue(stream, [call, work] { work(call); });
}

/// Behind so many more things that come onto its streams, the device is lost, as one is that fell off its bus: what is
/// under way is dropped, and every call about it fails, until restore().
void lose_after(int device, std::uint64_t launches);
void restore(int device);
bool is_lost(int device);

/// Takes bytes of a device's memory, or gives them back. False: it has not so many.
bool take(int device, std::uint64_t bytes);
void give(int device, std::uint64_t bytes);

}  // namespace millrace::simulated

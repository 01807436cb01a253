// Simulated devices: VRAM is an arena of host memory with a cap, a stream is a thread that works off a queue, a
// recorded pass is a list of what was queued, and kernels are the processor's, in the GPU's order of sums where another
// processor must have its bits. They stand behind device/device.h and kernels/gpu in CUDA's place, so that whatever
// lies above runs as it does on a GPU, on any machine: placement, streaming, expert slots, recorded passes, shards,
// caps. Times mean nothing, unless a test gives a device rates.
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

/// The bytes per second that a device's memory and link carry. 0: as many as this processor manages.
struct DeviceRates {
  double copies = 0;        // from the host, one after another
  double weights = 0;       // of matrices in VRAM, read by products
  double weights_host = 0;  // of matrices in page-locked memory, read by products across that link; 0: as copies
};
/// Holds the device to these rates from now on. An operation begins when its stream, the events that it waits for and
/// the link are free, and ends when its bytes have passed; its stream's thread sleeps until then. The times are added
/// up from these ends, not from when threads woke, so that a loaded machine delays a device without slowing it down.
/// What has no rate takes no time.
void set_rates(int device, const DeviceRates& rates);
/// For a kernel: takes the time in which it reads this matrix, or this part of one.
void read_weights(const std::byte* weights, std::int64_t bytes);
/// For a kernel that waited for another device or the processor: continues at the present time.
void continue_now();

/// Products of so many rows of activations and more come out wrong from now on, as by a card that computes otherwise;
/// 0: none.
void spoil_products_from(std::int64_t rows);

/// Takes bytes of a device's memory, or gives them back. False: it has not so many.
bool take(int device, std::uint64_t bytes);
void give(int device, std::uint64_t bytes);

}  // namespace millrace::simulated

// What the current device runs: for which compute capability its code was written, and how much shared memory a block
// may have. Thread-safe.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace millrace::kernels::cuda {

/// 10 major + minor. Below the device's own where its code was made from an older capability's PTX: what that lacks
/// (clusters, dependent launches, the copy engine) the kernels then do not use, and nobody may ask it of them. 0: there
/// is no device, or no code for it. Asked of the driver once a device.
int compiled_capability();

/// Bytes of shared memory that a block of every device since 8.0 may have when it asks for them.
constexpr std::size_t kLeastBlockShared = 99 * 1024;
/// Bytes of shared memory that a block may have when it asks for them: 227 KiB of 9.0, 163 of 8.0, 99 of 8.6, 8.9 and
/// 12.0; 0: there is no device. MILLRACE_BLOCK_SHARED of the environment, in KiB, makes it less, so that a larger card
/// runs what a smaller one would. Asked of the driver once a device.
int block_shared_bytes();
/// Whether the environment makes it less; a launch then has to ask whether its blocks would have their memory there.
bool pretends_less_shared();
/// Whether blocks of the kernel, with so many bytes that the launch gives, have no more than that.
bool fits_block_shared(const void* kernel, std::size_t dynamic_bytes);

}  // namespace millrace::kernels::cuda

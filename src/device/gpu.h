// Queries the GPUs of this machine. Works without a GPU: a program that was built without CUDA, or runs without a
// driver, gets an error with the reason. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::device {

struct Gpu {
  int index = 0;
  std::string name;
  std::uint64_t total_bytes = 0;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::uint64_t block_shared_bytes = 0;  // shared memory that a block of threads may take when it asks for it
  std::string driver;                    // the driver's name and version; empty: CUDA
  std::string lacks;                     // the missing features that keep it from computing; empty: none
};

/// What --device calls the GPUs of this program: "cuda" or "vulkan". The kind is chosen when the program is built.
std::string_view gpu_kind();
/// Whether `--device auto` and calibration use these GPUs. Vulkan devices compute only if --device names them, because
/// few drivers have run these kernels yet.
inline bool gpus_are_for_auto() { return gpu_kind() == "cuda"; }

/// `bytes` of shared memory of a block, limited to MILLRACE_BLOCK_SHARED KiB if that environment variable is set, so
/// that tests can run as on a card with less.
std::uint64_t at_most_block_shared(std::uint64_t bytes);

/// All GPUs that the driver shows this process, in the driver's order. Takes no device memory. Errors: unsupported,
/// with the reason (built without a GPU part, no driver, a driver that is too old for this program, no GPU).
Expected<std::vector<Gpu>> gpus();

/// The GPU with this index. Errors: as gpus(), and unsupported if there is none.
Expected<Gpu> gpu(int index);

/// The newest CUDA version that the driver supports, and the version of this build, such as "12.8"; empty if there is
/// none.
std::string driver_cuda_version();
std::string built_cuda_version();

}  // namespace millrace::device

// The GPUs of this machine, asked without needing one: a program built without CUDA, or started where there is no
// driver, gets an error that says so.
// Thread-safe.
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
  std::string driver;                    // what drives it, in words; empty: CUDA
  std::string lacks;                     // what it would need to compute here; empty: nothing
};

/// What --device calls the GPUs of this program: "cuda" or "vulkan". Which kind it has was decided when it was built.
std::string_view gpu_kind();
/// Whether `--device auto` and calibration look at these GPUs. Vulkan's compute where they are named: too few drivers
/// have run these kernels yet.
inline bool gpus_are_for_auto() { return gpu_kind() == "cuda"; }

/// `bytes` of shared memory of a block, or less where MILLRACE_BLOCK_SHARED of the environment says so, in KiB: for
/// tests of what cards with less would run.
std::uint64_t at_most_block_shared(std::uint64_t bytes);

/// Every GPU that the driver shows this process, in its order. Takes no device memory. Errors: unsupported, saying why
/// (built without a GPU part, no driver, a driver too old for this program, no GPU).
Expected<std::vector<Gpu>> gpus();

/// The one of that number. Errors: as gpus(), and unsupported where it is not among them.
Expected<Gpu> gpu(int index);

/// "12.8": the newest CUDA the driver speaks, and the one this program was built with; empty where there is none.
std::string driver_cuda_version();
std::string built_cuda_version();

}  // namespace millrace::device

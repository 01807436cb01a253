// The GPUs of this machine, asked without needing one: a program built without CUDA, or started where there is no
// driver, gets an error that says so.
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>
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
};

/// `bytes` of shared memory of a block, or less where MILLRACE_BLOCK_SHARED of the environment says so, in KiB: for
/// tests of what cards with less would run.
std::uint64_t at_most_block_shared(std::uint64_t bytes);

/// Every GPU that CUDA shows this process, in its order. Takes no device memory. Errors: unsupported, saying why (built
/// without CUDA, no driver, a driver too old for this program, no GPU).
Expected<std::vector<Gpu>> gpus();

/// The one of that number. Errors: as gpus(), and unsupported where it is not among them.
Expected<Gpu> gpu(int index);

/// "12.8": the newest CUDA the driver speaks, and the one this program was built with; empty where there is none.
std::string driver_cuda_version();
std::string built_cuda_version();

}  // namespace millrace::device

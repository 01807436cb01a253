// The GPUs of this machine, by CUDA.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "device/gpu.h"

namespace millrace::device {

namespace {

std::string version_text(int version) {
  return version > 0 ? fmt::format("{}.{}", version / 1000, version % 1000 / 10) : std::string();
}

}  // namespace

std::string_view gpu_kind() { return "cuda"; }

std::string built_cuda_version() { return version_text(CUDART_VERSION); }

std::string driver_cuda_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version_text(version) : std::string();
}

Expected<std::vector<Gpu>> gpus() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorInsufficientDriver && !driver_cuda_version().empty())
    return error(Code::unsupported,
                 "the NVIDIA driver speaks CUDA {} but this program needs {}: update the driver, or use --device cpu",
                 driver_cuda_version(), built_cuda_version());
  if (code == cudaErrorInsufficientDriver) return error(Code::unsupported, "there is no NVIDIA driver on this machine");
  if (code == cudaErrorNoDevice || (code == cudaSuccess && count == 0))
    return error(Code::unsupported, "the NVIDIA driver shows this process no GPU (CUDA_VISIBLE_DEVICES hides them?)");
  if (code != cudaSuccess)
    return error(Code::unsupported, "CUDA cannot be used here: {}; --device cpu goes without",
                 cudaGetErrorString(code));
  std::vector<Gpu> found;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    found.push_back({i,
                     properties.name,
                     properties.totalGlobalMem,
                     properties.major,
                     properties.minor,
                     properties.multiProcessorCount,
                     at_most_block_shared(properties.sharedMemPerBlockOptin),
                     {},
                     {}});
  }
  return found;
}

}  // namespace millrace::device

#include "device/gpu.h"

#include <algorithm>
#include <cstdlib>

#include "base/bytes.h"

namespace millrace::device {

std::uint64_t at_most_block_shared(std::uint64_t bytes) {
  static const std::uint64_t most = [] {
    const char* const said = std::getenv("MILLRACE_BLOCK_SHARED");
    const std::uint64_t kib = said == nullptr ? 0 : std::strtoull(said, nullptr, 10);
    return kib == 0 ? UINT64_MAX : kib * kKiB;
  }();
  return std::min(bytes, most);
}

#ifndef MILLRACE_HAS_GPU

std::string_view gpu_kind() { return "cuda"; }
std::string built_cuda_version() { return {}; }
std::string driver_cuda_version() { return {}; }

Expected<std::vector<Gpu>> gpus() {
  return error(Code::unsupported,
               "this program was built without its GPU part; build it again where an NVIDIA driver is installed, or "
               "with CUDA=ON make");
}

#endif

Expected<Gpu> gpu(int index) {
  MR_ASSIGN_OR_RETURN(std::vector<Gpu> found, gpus());
  for (Gpu& one : found)
    if (one.index == index) return std::move(one);
  return error(Code::unsupported, "GPU {} is not among those here", index);
}

}  // namespace millrace::device

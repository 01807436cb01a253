// The GPUs of this machine, by Vulkan.
#include "device/gpu.h"
#include "device/vulkan/driver.h"

namespace millrace::device {

std::string_view gpu_kind() { return "vulkan"; }
std::string built_cuda_version() { return {}; }
std::string driver_cuda_version() { return {}; }

Expected<std::vector<Gpu>> gpus() {
  MR_ASSIGN_OR_RETURN(const std::vector<vulkan::Offer> offers, vulkan::offers());
  if (offers.empty())
    return error(Code::unsupported,
                 "no Vulkan driver shows a device; install one (mesa-vulkan-drivers), or use --device cpu");
  std::vector<Gpu> found;
  for (std::size_t i = 0; i < offers.size(); ++i) {
    const vulkan::Offer& offer = offers[i];
    Gpu gpu;
    gpu.index = static_cast<int>(i);
    gpu.name = offer.name;
    gpu.total_bytes = offer.memory_bytes;
    gpu.multiprocessors = 1;  // Vulkan does not tell
    gpu.block_shared_bytes = at_most_block_shared(offer.shared_bytes);
    gpu.driver = fmt::format("Vulkan {}.{}.{}, {}", VK_API_VERSION_MAJOR(offer.api), VK_API_VERSION_MINOR(offer.api),
                             VK_API_VERSION_PATCH(offer.api), offer.driver);
    gpu.lacks = offer.lacks;
    found.push_back(std::move(gpu));
  }
  return found;
}

}  // namespace millrace::device

#include "device/vulkan/calls.h"

#include <string_view>

#include "base/os/library.h"

namespace millrace::device::vulkan {
namespace {

#ifdef _WIN32
constexpr const char* kLoader = "vulkan-1.dll";
#else
constexpr const char* kLoader = "libvulkan.so.1";
#endif

Expected<InstanceCalls> open_instance() {
  Expected<os::Library> loader = os::Library::load(kLoader);
  if (!loader.ok())
    return error(Code::unsupported, "no Vulkan loader ({}): {}; install libvulkan1 and a driver, or use --device cpu",
                 kLoader, loader.status().message());
  std::remove_pointer_t<PFN_vkGetInstanceProcAddr>* get = nullptr;
  loader->find("vkGetInstanceProcAddr", get);
  if (get == nullptr) return error(Code::unsupported, "{} has no vkGetInstanceProcAddr", kLoader);
  const auto create = reinterpret_cast<PFN_vkCreateInstance>(get(nullptr, "vkCreateInstance"));
  const auto version_of = reinterpret_cast<PFN_vkEnumerateInstanceVersion>(get(nullptr, "vkEnumerateInstanceVersion"));
  std::uint32_t version = VK_API_VERSION_1_0;
  if (create == nullptr || version_of == nullptr || version_of(&version) != VK_SUCCESS || version < VK_API_VERSION_1_2)
    return error(Code::unsupported, "the Vulkan loader is older than 1.2; install a newer one, or use --device cpu");
  VkApplicationInfo application{};
  application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  application.pApplicationName = "millrace";
  application.apiVersion = VK_API_VERSION_1_2;
  VkInstanceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  info.pApplicationInfo = &application;
  InstanceCalls calls;
  if (const Status made = vulkan_status(create(&info, nullptr, &calls.instance), "vkCreateInstance"); !made.ok())
    return error(Code::unsupported, "{}; install a Vulkan driver (mesa-vulkan-drivers), or use --device cpu",
                 made.message());
#define MR_VULKAN_FIND(name)                                             \
  calls.name = reinterpret_cast<PFN_##name>(get(calls.instance, #name)); \
  if (calls.name == nullptr) return error(Code::unsupported, "the Vulkan loader has no " #name);
  MR_VULKAN_INSTANCE_CALLS(MR_VULKAN_FIND)
#undef MR_VULKAN_FIND
  return calls;
}

std::string_view words_of(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
      return "out of host memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
      return "out of device memory";
    case VK_ERROR_DEVICE_LOST:
      return "the device is lost";
    case VK_ERROR_INCOMPATIBLE_DRIVER:
      return "no driver";
    case VK_ERROR_INITIALIZATION_FAILED:
      return "the driver did not start";
    case VK_ERROR_TOO_MANY_OBJECTS:
      return "too many objects";
    case VK_ERROR_INVALID_EXTERNAL_HANDLE:
      return "the driver does not take this host memory";
    default:
      return {};
  }
}

}  // namespace

Expected<const InstanceCalls*> instance_calls() {
  static const Expected<InstanceCalls> calls = open_instance();  // stays until the process ends
  if (!calls.ok()) return calls.status();
  return &*calls;
}

Expected<DeviceCalls> device_calls(const InstanceCalls& instance, VkDevice device) {
  DeviceCalls calls;
#define MR_VULKAN_FIND(name) calls.name = reinterpret_cast<PFN_##name>(instance.vkGetDeviceProcAddr(device, #name));
#define MR_VULKAN_NEED(name) \
  MR_VULKAN_FIND(name)       \
  if (calls.name == nullptr) return error(Code::unsupported, "the Vulkan driver has no " #name);
  MR_VULKAN_DEVICE_CALLS(MR_VULKAN_NEED)
  MR_VULKAN_EXTENSION_CALLS(MR_VULKAN_FIND)
#undef MR_VULKAN_NEED
#undef MR_VULKAN_FIND
  return calls;
}

Status vulkan_status(VkResult result, const char* call) {
  if (result >= VK_SUCCESS) return {};
  const std::string_view what(call), name = what.substr(0, what.find('('));
  const std::size_t begin = name.find("vk") == name.npos ? 0 : name.rfind("vk");
  const Code code = result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY
                        ? Code::out_of_budget
                        : Code::io_error;
  const std::string_view words = words_of(result);
  return words.empty() ? error(code, "{}: Vulkan error {}", name.substr(begin), static_cast<int>(result))
                       : error(code, "{}: {}", name.substr(begin), words);
}

}  // namespace millrace::device::vulkan

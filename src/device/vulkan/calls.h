// Vulkan's functions, looked up in libvulkan.so.1 while the program runs: nothing is linked, and the program starts the
// same where there is no loader. Compiled only where the GPU part is Vulkan's.
// Thread-safety: the tables are written once and read by all.
#pragma once

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include "base/status.h"

namespace millrace::device::vulkan {

// Functions that need an instance, and those of a device.
#define MR_VULKAN_INSTANCE_CALLS(X)            \
  X(vkEnumeratePhysicalDevices)                \
  X(vkGetPhysicalDeviceProperties2)            \
  X(vkGetPhysicalDeviceFeatures2)              \
  X(vkGetPhysicalDeviceMemoryProperties2)      \
  X(vkGetPhysicalDeviceQueueFamilyProperties2) \
  X(vkEnumerateDeviceExtensionProperties)      \
  X(vkCreateDevice)                            \
  X(vkGetDeviceProcAddr)
#define MR_VULKAN_DEVICE_CALLS(X)  \
  X(vkGetDeviceQueue)              \
  X(vkQueueSubmit)                 \
  X(vkDeviceWaitIdle)              \
  X(vkCreateBuffer)                \
  X(vkDestroyBuffer)               \
  X(vkGetBufferMemoryRequirements) \
  X(vkGetBufferDeviceAddress)      \
  X(vkAllocateMemory)              \
  X(vkFreeMemory)                  \
  X(vkBindBufferMemory)            \
  X(vkMapMemory)                   \
  X(vkCreateShaderModule)          \
  X(vkDestroyShaderModule)         \
  X(vkCreatePipelineLayout)        \
  X(vkCreatePipelineCache)         \
  X(vkGetPipelineCacheData)        \
  X(vkCreateComputePipelines)      \
  X(vkCreateCommandPool)           \
  X(vkDestroyCommandPool)          \
  X(vkAllocateCommandBuffers)      \
  X(vkBeginCommandBuffer)          \
  X(vkEndCommandBuffer)            \
  X(vkCmdBindPipeline)             \
  X(vkCmdPushConstants)            \
  X(vkCmdDispatch)                 \
  X(vkCmdPipelineBarrier)          \
  X(vkCmdCopyBuffer)               \
  X(vkCmdFillBuffer)               \
  X(vkCmdResetQueryPool)           \
  X(vkCmdWriteTimestamp)           \
  X(vkCreateQueryPool)             \
  X(vkDestroyQueryPool)            \
  X(vkGetQueryPoolResults)         \
  X(vkCreateSemaphore)             \
  X(vkDestroySemaphore)            \
  X(vkGetSemaphoreCounterValue)    \
  X(vkWaitSemaphores)
// Functions of extensions, null where the device lacks them.
#define MR_VULKAN_EXTENSION_CALLS(X) X(vkGetMemoryHostPointerPropertiesEXT)

#define MR_VULKAN_DECLARE(name) PFN_##name name = nullptr;
struct InstanceCalls {
  VkInstance instance = nullptr;
  MR_VULKAN_INSTANCE_CALLS(MR_VULKAN_DECLARE)
};
struct DeviceCalls {
  MR_VULKAN_DEVICE_CALLS(MR_VULKAN_DECLARE)
  MR_VULKAN_EXTENSION_CALLS(MR_VULKAN_DECLARE)
};
#undef MR_VULKAN_DECLARE

/// The process's instance, made at the first call. Errors: unsupported (no loader, a loader older than Vulkan 1.2, no
/// driver).
Expected<const InstanceCalls*> instance_calls();
/// Those of a device. Errors: unsupported (one of Vulkan 1.2 is missing).
Expected<DeviceCalls> device_calls(const InstanceCalls& instance, VkDevice device);

/// Ok, or what failed: "vkAllocateMemory: out of device memory". A lost device is io_error, memory out_of_budget.
Status vulkan_status(VkResult result, const char* call);

#define MR_VULKAN(call)                                                                                 \
  do {                                                                                                  \
    if (::millrace::Status mr_vulkan_status = ::millrace::device::vulkan::vulkan_status((call), #call); \
        !mr_vulkan_status.ok())                                                                         \
      return mr_vulkan_status;                                                                          \
  } while (false)

}  // namespace millrace::device::vulkan

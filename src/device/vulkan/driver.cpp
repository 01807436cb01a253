#include "device/vulkan/driver.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/bytes.h"
#include "base/log.h"
#include "base/os/file.h"
#include "base/os/process.h"
#include "base/os/user_folders.h"
#include "device/vulkan/self_test.h"

namespace millrace::device::vulkan {
namespace {

constexpr VkBufferUsageFlags kUsage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
                                      VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
constexpr std::uint32_t kLeastGroupThreads = 256, kLeastSharedBytes = 16 * 1024;  // that kernels count on
constexpr std::uint32_t kMostQueues = 8;

/// A structure of Vulkan's, its type set, the next one behind it.
template <typename T>
T chained(VkStructureType type, void* next = nullptr) {
  T made{};
  made.sType = type;
  made.pNext = next;
  return made;
}

/// What kernels and streams use of a device, for asking and for opening.
struct Features {
  VkPhysicalDeviceVulkan12Features v12 =
      chained<VkPhysicalDeviceVulkan12Features>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
  VkPhysicalDeviceVulkan11Features v11 =
      chained<VkPhysicalDeviceVulkan11Features>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, &v12);
  VkPhysicalDeviceFeatures2 all =
      chained<VkPhysicalDeviceFeatures2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &v11);

  VkPhysicalDeviceShaderIntegerDotProductFeatures dots = chained<VkPhysicalDeviceShaderIntegerDotProductFeatures>(
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES);

  explicit Features(bool packed_dots) {
    if (packed_dots) v12.pNext = &dots;
  }
  Features(const Features&) = delete;
  Features& operator=(const Features&) = delete;

  /// each(field, name) for every feature that is needed.
  template <typename Each>
  void needed(const Each& each) {
    each(v12.bufferDeviceAddress, "bufferDeviceAddress");
    each(v12.timelineSemaphore, "timelineSemaphore");
    each(v12.shaderInt8, "shaderInt8");
    each(v12.storageBuffer8BitAccess, "storageBuffer8BitAccess");
    each(v11.storageBuffer16BitAccess, "storageBuffer16BitAccess");
    each(all.features.shaderInt16, "shaderInt16");
    each(all.features.shaderInt64, "shaderInt64");
  }
};

bool has(const std::vector<VkExtensionProperties>& extensions, const char* name) {
  return std::any_of(extensions.begin(), extensions.end(),
                     [&](const VkExtensionProperties& one) { return std::strcmp(one.extensionName, name) == 0; });
}

/// The family whose queues compute and copy, with most queues.
void choose_queues(const InstanceCalls& vk, Offer& offer) {
  std::uint32_t count = 0;
  vk.vkGetPhysicalDeviceQueueFamilyProperties2(offer.physical, &count, nullptr);
  std::vector<VkQueueFamilyProperties2> families(
      count, chained<VkQueueFamilyProperties2>(VK_STRUCTURE_TYPE_QUEUE_FAMILY_PROPERTIES_2));
  vk.vkGetPhysicalDeviceQueueFamilyProperties2(offer.physical, &count, families.data());
  std::uint32_t timestamp_bits = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const VkQueueFamilyProperties& family = families[i].queueFamilyProperties;
    if ((family.queueFlags & VK_QUEUE_COMPUTE_BIT) == 0 || family.queueCount <= offer.queues) continue;
    offer.queue_family = i;
    offer.queues = family.queueCount;
    timestamp_bits = family.timestampValidBits;
  }
  offer.queues = std::min(offer.queues, kMostQueues);
  if (timestamp_bits == 0) offer.nanoseconds = 0;
}

Offer offer_of(const InstanceCalls& vk, VkPhysicalDevice physical) {
  Offer offer;
  offer.physical = physical;
  std::uint32_t count = 0;
  vk.vkEnumerateDeviceExtensionProperties(physical, nullptr, &count, nullptr);
  std::vector<VkExtensionProperties> extensions(count);
  vk.vkEnumerateDeviceExtensionProperties(physical, nullptr, &count, extensions.data());
  offer.host_import = has(extensions, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
  offer.memory_budget = has(extensions, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  offer.packed_dots = has(extensions, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME);

  auto import = chained<VkPhysicalDeviceExternalMemoryHostPropertiesEXT>(
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT);
  auto v11 = chained<VkPhysicalDeviceVulkan11Properties>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES,
                                                         offer.host_import ? &import : nullptr);
  auto v12 = chained<VkPhysicalDeviceVulkan12Properties>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES, &v11);
  auto properties = chained<VkPhysicalDeviceProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2);
  vk.vkGetPhysicalDeviceProperties2(physical, &properties);
  offer.api = properties.properties.apiVersion;
  if (offer.api >= VK_API_VERSION_1_2) {  // older ones do not know these structures
    properties.pNext = &v12;
    vk.vkGetPhysicalDeviceProperties2(physical, &properties);
  }
  const VkPhysicalDeviceLimits& limits = properties.properties.limits;
  offer.name = properties.properties.deviceName;
  offer.driver = offer.api < VK_API_VERSION_1_2 ? std::string() : fmt::format("{} {}", v12.driverName, v12.driverInfo);
  offer.discrete = properties.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
  offer.processor = properties.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
  offer.shared_bytes = limits.maxComputeSharedMemorySize;
  offer.group_threads = limits.maxComputeWorkGroupInvocations;
  offer.piece_bytes = v11.maxMemoryAllocationSize;
  offer.nanoseconds = limits.timestampPeriod;
  offer.import_alignment = std::max<std::uint64_t>(import.minImportedHostPointerAlignment, 4096);
  offer.preserves_denormals = v12.shaderDenormPreserveFloat32 != VK_FALSE;
  offer.signed_zeros = v12.shaderSignedZeroInfNanPreserveFloat32 != VK_FALSE;
  offer.rounds_to_even = v12.shaderRoundingModeRTEFloat32 != VK_FALSE;
  choose_queues(vk, offer);

  auto memory = chained<VkPhysicalDeviceMemoryProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2);
  vk.vkGetPhysicalDeviceMemoryProperties2(physical, &memory);
  for (std::uint32_t i = 0; i < memory.memoryProperties.memoryHeapCount; ++i) {
    const VkMemoryHeap& heap = memory.memoryProperties.memoryHeaps[i];
    if ((heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0)
      offer.memory_bytes = std::max<std::uint64_t>(offer.memory_bytes, heap.size);
  }

  if (offer.api < VK_API_VERSION_1_2) {
    offer.lacks = "Vulkan 1.2";
  } else if (offer.queues == 0) {
    offer.lacks = "a queue that computes";
  } else if (offer.group_threads < kLeastGroupThreads || offer.shared_bytes < kLeastSharedBytes) {
    offer.lacks = "workgroups of 256 threads with 16 KiB";
  } else {
    Features features(offer.packed_dots);
    vk.vkGetPhysicalDeviceFeatures2(physical, &features.all);
    offer.packed_dots = features.dots.shaderIntegerDotProduct == VK_TRUE;
    features.needed([&](VkBool32 there, const char* name) {
      if (there == VK_FALSE && offer.lacks.empty()) offer.lacks = name;
    });
  }
  return offer;
}

/// Without the float controls that a device does not have: an execution mode is three words or four, a capability two.
std::vector<std::uint32_t> without_controls(std::span<const std::uint32_t> code, const Offer& offer) {
  struct Control {
    std::uint32_t capability, mode;
    bool there;
  };
  const Control controls[] = {{4464, 4459, offer.preserves_denormals},  // DenormPreserve
                              {4466, 4461, offer.signed_zeros},         // SignedZeroInfNanPreserve
                              {4467, 4462, offer.rounds_to_even}};      // RoundingModeRTE
  constexpr std::uint32_t kCapability = 17, kExecutionMode = 16;
  constexpr std::size_t kHeaderWords = 5;
  std::vector<std::uint32_t> kept(code.begin(), code.begin() + kHeaderWords);
  for (std::size_t at = kHeaderWords; at < code.size();) {
    const std::uint32_t words = code[at] >> 16, op = code[at] & 0xffff;
    const bool unwanted = std::any_of(std::begin(controls), std::end(controls), [&](const Control& control) {
      if (control.there) return false;
      return (op == kCapability && code[at + 1] == control.capability) ||
             (op == kExecutionMode && code[at + 2] == control.mode);
    });
    if (!unwanted)
      kept.insert(kept.end(), code.begin() + static_cast<std::ptrdiff_t>(at),
                  code.begin() + static_cast<std::ptrdiff_t>(at + words));
    at += words;
  }
  return kept;
}

std::filesystem::path cache_path(const Offer& offer) {
  const std::string folder = os::user_folder(os::UserFolder::cache);
  if (folder.empty()) return {};
  std::string name;
  for (const char c : offer.name + " " + offer.driver)
    name += (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ? c : '_';
  return std::filesystem::path(folder) / "millrace" / "vulkan" / (name + ".pipelines");
}

/// The device that is open. It stays: memory that it sees may outlive statics.
std::atomic<Driver*>& opened() {
  static std::atomic<Driver*> driver{nullptr};
  return driver;
}

}  // namespace

Expected<std::vector<Offer>> offers() {
  MR_ASSIGN_OR_RETURN(const InstanceCalls* const vk, instance_calls());
  std::uint32_t count = 0;
  const VkResult counted = vk->vkEnumeratePhysicalDevices(vk->instance, &count, nullptr);
  if (const Status status = vulkan_status(counted, "vkEnumeratePhysicalDevices"); !status.ok())
    return error(Code::unsupported, "{}; install a Vulkan driver (mesa-vulkan-drivers), or use --device cpu",
                 status.message());
  std::vector<VkPhysicalDevice> devices(count);
  MR_VULKAN(vk->vkEnumeratePhysicalDevices(vk->instance, &count, devices.data()));
  std::vector<Offer> found;
  for (VkPhysicalDevice device : devices) found.push_back(offer_of(*vk, device));
  return found;
}

Expected<Driver*> Driver::open(int index) {
  static Mutex opening;
  const MutexLock lock(opening);
  static bool tested = false;  // what an earlier call opened
  if (Driver* const driver = opened(); driver != nullptr && driver->index != index)
    return error(
        Code::unsupported,
        "this process computes on vulkan:{}; one process has one Vulkan device, so start another for vulkan:{}",
        driver->index, index);
  if (opened() == nullptr) {
    MR_ASSIGN_OR_RETURN(std::unique_ptr<Driver> made, make(index));
    opened() = made.release();
  }
  if (!tested) MR_RETURN_IF_ERROR(self_test(*opened()).with_context("the Vulkan device's self-test"));
  tested = true;
  return opened().load();
}

Expected<Driver*> Driver::get() {
  if (Driver* const driver = opened(); driver != nullptr) return driver;
  return open(0);
}

Expected<std::unique_ptr<Driver>> Driver::make(int index) {
  MR_ASSIGN_OR_RETURN(const InstanceCalls* const vk, instance_calls());
  MR_ASSIGN_OR_RETURN(const std::vector<Offer> found, offers());
  if (index < 0 || index >= static_cast<int>(found.size()))
    return error(Code::unsupported, "--device vulkan:{}: there are {} Vulkan devices here, counted from 0", index,
                 found.size());
  const Offer& offer = found[static_cast<std::size_t>(index)];
  if (!offer.lacks.empty())
    return error(Code::unsupported, "vulkan:{} {} lacks {}; update its driver, or use --device cpu", index, offer.name,
                 offer.lacks);
  Features features(offer.packed_dots);
  features.needed([](VkBool32& feature, const char*) { feature = VK_TRUE; });
  features.dots.shaderIntegerDotProduct = VK_TRUE;
  const std::vector<float> priorities(offer.queues, 0.5f);
  auto queues = chained<VkDeviceQueueCreateInfo>(VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO);
  queues.queueFamilyIndex = offer.queue_family;
  queues.queueCount = offer.queues;
  queues.pQueuePriorities = priorities.data();
  std::vector<const char*> extensions;
  if (offer.host_import) extensions.push_back(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
  if (offer.memory_budget) extensions.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  if (offer.packed_dots) extensions.push_back(VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME);
  auto info = chained<VkDeviceCreateInfo>(VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &features.all);
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queues;
  info.enabledExtensionCount = static_cast<std::uint32_t>(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
  VkDevice device = nullptr;
  MR_VULKAN(vk->vkCreateDevice(offer.physical, &info, nullptr, &device));
  MR_ASSIGN_OR_RETURN(const DeviceCalls calls, device_calls(*vk, device));

  const VkPushConstantRange arguments{VK_SHADER_STAGE_COMPUTE_BIT, 0, kMostArgumentBytes};
  auto layout = chained<VkPipelineLayoutCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO);
  layout.pushConstantRangeCount = 1;
  layout.pPushConstantRanges = &arguments;
  VkPipelineLayout pipelines = nullptr;
  MR_VULKAN(calls.vkCreatePipelineLayout(device, &layout, nullptr, &pipelines));
  std::unique_ptr<Driver> driver(new Driver(calls, device, offer, index, pipelines));
  auto memory = chained<VkPhysicalDeviceMemoryProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2);
  vk->vkGetPhysicalDeviceMemoryProperties2(offer.physical, &memory);
  driver->memories_ = memory.memoryProperties;
  for (std::uint32_t i = 0; i < offer.queues; ++i) {
    driver->queues_.push_back(std::make_unique<Queue>());
    calls.vkGetDeviceQueue(device, offer.queue_family, i, &driver->queues_.back()->queue);
  }
  driver->load_pipelines();
  return driver;
}

Driver::Driver(const DeviceCalls& calls, VkDevice opened, Offer of, int number, VkPipelineLayout pipelines)
    : vk(calls), device(opened), offer(std::move(of)), index(number), layout(pipelines) {}

// --- Memory ---

std::optional<std::uint32_t> Driver::memory_type(std::uint32_t among, VkMemoryPropertyFlags wanted) const {
  for (std::uint32_t i = 0; i < memories_.memoryTypeCount; ++i)
    if ((among >> i & 1) != 0 && (memories_.memoryTypes[i].propertyFlags & wanted) == wanted) return i;
  return std::nullopt;
}

Expected<VkBuffer> Driver::make_buffer(std::uint64_t bytes, bool imported) const {
  auto external = chained<VkExternalMemoryBufferCreateInfo>(VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO);
  external.handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
  auto info = chained<VkBufferCreateInfo>(VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, imported ? &external : nullptr);
  info.size = bytes;
  info.usage = kUsage;
  VkBuffer buffer = nullptr;
  MR_VULKAN(vk.vkCreateBuffer(device, &info, nullptr, &buffer));
  return buffer;
}

/// Memory for a buffer, which goes where that fails.
Expected<Piece> Driver::bind(VkBuffer buffer, std::uint64_t bytes, std::uint32_t type, const void* import, bool map) {
  Piece piece;
  piece.buffer = buffer;
  piece.bytes = bytes;
  const auto allocate = [&]() -> Status {
    VkMemoryRequirements needed{};
    vk.vkGetBufferMemoryRequirements(device, buffer, &needed);
    auto flags =
        chained<VkMemoryAllocateFlagsInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, const_cast<void*>(import));
    flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
    auto info = chained<VkMemoryAllocateInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &flags);
    info.allocationSize = import != nullptr ? bytes : needed.size;
    info.memoryTypeIndex = type;
    MR_VULKAN(vk.vkAllocateMemory(device, &info, nullptr, &piece.memory));
    MR_VULKAN(vk.vkBindBufferMemory(device, buffer, piece.memory, 0));
    if (map) {
      void* at = nullptr;
      MR_VULKAN(vk.vkMapMemory(device, piece.memory, 0, VK_WHOLE_SIZE, 0, &at));
      piece.mapped = static_cast<std::byte*>(at);
    }
    return {};
  };
  if (const Status status = allocate(); !status.ok()) {
    if (piece.memory != nullptr) vk.vkFreeMemory(device, piece.memory, nullptr);
    vk.vkDestroyBuffer(device, buffer, nullptr);
    return status;
  }
  auto asked = chained<VkBufferDeviceAddressInfo>(VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO);
  asked.buffer = buffer;
  piece.address = vk.vkGetBufferDeviceAddress(device, &asked);
  const MutexLock lock(mutex_);
  pieces_[piece.address] = piece;
  if (import == nullptr) used_bytes_ += bytes;
  return piece;
}

Expected<Piece> Driver::make_piece(std::uint64_t bytes, Where where) {
  // Drivers that name a smaller limit for one allocation may give more all the same.
  const auto refused = [&](const Status& status) -> Status {
    if (bytes <= offer.piece_bytes) return status;
    return error(Code::out_of_budget,
                 "{} in one piece: {} allocates {} at once ({}); use a smaller model, or --device cpu",
                 format_bytes(bytes), offer.name, format_bytes(offer.piece_bytes), status.message());
  };
  if (bytes > std::max(offer.piece_bytes, offer.memory_bytes))
    return refused(error(Code::out_of_budget, "its memory has {}", format_bytes(offer.memory_bytes)));
  MR_ASSIGN_OR_RETURN(VkBuffer buffer, make_buffer(bytes, false));
  VkMemoryRequirements needed{};
  vk.vkGetBufferMemoryRequirements(device, buffer, &needed);
  constexpr VkMemoryPropertyFlags kCoherent =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  std::optional<std::uint32_t> type = memory_type(
      needed.memoryTypeBits, where == Where::device ? VkMemoryPropertyFlags{VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT}
                                                    : kCoherent | VK_MEMORY_PROPERTY_HOST_CACHED_BIT);
  if (!type && where == Where::host) type = memory_type(needed.memoryTypeBits, kCoherent);
  if (!type) {
    vk.vkDestroyBuffer(device, buffer, nullptr);
    return error(Code::unsupported, "{} has no memory of the kind that is needed", offer.name);
  }
  Expected<Piece> piece = bind(buffer, bytes, *type, nullptr, where == Where::host);
  if (!piece.ok()) return refused(piece.status());
  return piece;
}

Expected<Piece> Driver::import(std::byte* host, std::uint64_t bytes) {
  if (!offer.host_import || vk.vkGetMemoryHostPointerPropertiesEXT == nullptr)
    return error(Code::unsupported, "{} does not take memory of the host ({})", offer.name,
                 VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
  constexpr auto kKind = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
  auto taken = chained<VkMemoryHostPointerPropertiesEXT>(VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT);
  MR_VULKAN(vk.vkGetMemoryHostPointerPropertiesEXT(device, kKind, host, &taken));
  const std::uint64_t whole = round_up(bytes, offer.import_alignment);
  MR_ASSIGN_OR_RETURN(VkBuffer buffer, make_buffer(whole, true));
  VkMemoryRequirements needed{};
  vk.vkGetBufferMemoryRequirements(device, buffer, &needed);
  const std::optional<std::uint32_t> type =
      memory_type(needed.memoryTypeBits & taken.memoryTypeBits,
                  VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
  if (!type) {
    vk.vkDestroyBuffer(device, buffer, nullptr);
    return error(Code::unsupported, "{} has no memory type for the host's", offer.name);
  }
  auto import = chained<VkImportMemoryHostPointerInfoEXT>(VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT);
  import.handleType = kKind;
  import.pHostPointer = host;
  MR_ASSIGN_OR_RETURN(Piece piece, bind(buffer, whole, *type, &import, false));
  piece.mapped = host;
  const MutexLock lock(mutex_);
  imported_[host] = piece;
  return piece;
}

void Driver::drop(const Piece& piece) {
  {
    const MutexLock lock(mutex_);
    pieces_.erase(piece.address);
    const auto imported = imported_.find(piece.mapped);
    if (imported != imported_.end() && imported->second.buffer == piece.buffer)
      imported_.erase(imported);
    else
      used_bytes_ -= piece.bytes;
  }
  vk.vkDestroyBuffer(device, piece.buffer, nullptr);
  vk.vkFreeMemory(device, piece.memory, nullptr);
}

namespace {

/// The last entry whose key is `at` or below; null: none.
template <typename Map>
const typename Map::value_type* last_up_to(const Map& map, typename Map::key_type at) {
  const auto next = map.upper_bound(at);
  return next == map.begin() ? nullptr : &*std::prev(next);
}

template <typename Map>
std::optional<Piece> piece_at(const Map& map, typename Map::key_type key) {
  const auto found = map.find(key);
  return found == map.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

std::optional<Place> Driver::find(std::uint64_t address, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  const auto* const found = last_up_to(pieces_, address);
  if (found == nullptr || address + bytes > found->first + found->second.bytes) return std::nullopt;
  return Place{found->second.buffer, address - found->first};
}

std::optional<Place> Driver::find_host(const std::byte* host, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  const auto* const found = last_up_to(imported_, host);
  if (found == nullptr || host + bytes > found->first + found->second.bytes) return std::nullopt;
  return Place{found->second.buffer, static_cast<std::uint64_t>(host - found->first)};
}

std::optional<std::uint64_t> Driver::address_of_host(const std::byte* host) {
  const MutexLock lock(mutex_);
  const auto* const found = last_up_to(imported_, host);
  if (found == nullptr || host >= found->first + found->second.bytes) return std::nullopt;
  return found->second.address + static_cast<std::uint64_t>(host - found->first);
}

void Driver::drop_at(std::uint64_t address) {
  std::optional<Piece> piece;
  {
    const MutexLock lock(mutex_);
    piece = piece_at(pieces_, address);
  }
  if (piece) drop(*piece);
}

void Driver::drop_host(const std::byte* host) {
  std::optional<Piece> piece;
  {
    const MutexLock lock(mutex_);
    piece = piece_at(imported_, host);
  }
  if (piece) drop(*piece);
}

VramState Driver::memory_state() {
  std::uint32_t heap = 0;
  for (std::uint32_t i = 0; i < memories_.memoryHeapCount; ++i)
    if ((memories_.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0 &&
        memories_.memoryHeaps[i].size == offer.memory_bytes)
      heap = i;
  VramState state;
  state.total_bytes = offer.memory_bytes;
  if (const auto vk_instance = instance_calls(); vk_instance.ok() && offer.memory_budget) {
    auto budget = chained<VkPhysicalDeviceMemoryBudgetPropertiesEXT>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT);
    auto memory =
        chained<VkPhysicalDeviceMemoryProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, &budget);
    (*vk_instance)->vkGetPhysicalDeviceMemoryProperties2(offer.physical, &memory);
    const std::uint64_t most = budget.heapBudget[heap], used = budget.heapUsage[heap];
    state.free_bytes = most > used ? most - used : 0;
    return state;
  }
  const MutexLock lock(mutex_);
  state.free_bytes = state.total_bytes > used_bytes_ ? state.total_bytes - used_bytes_ : 0;
  return state;
}

// --- Pipelines ---

void Driver::load_pipelines() {
  std::vector<char> bytes;
  if (const auto path = cache_path(offer); !path.empty()) {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  // The driver refuses what another version or device wrote.
  auto info = chained<VkPipelineCacheCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO);
  info.initialDataSize = bytes.size();
  info.pInitialData = bytes.data();
  if (vk.vkCreatePipelineCache(device, &info, nullptr, &cache_) != VK_SUCCESS) cache_ = nullptr;
}

void Driver::keep_pipelines() {
  std::vector<char> bytes;
  {
    const MutexLock lock(mutex_);
    if (!std::exchange(new_pipelines_, false) || cache_ == nullptr) return;
    std::size_t size = 0;
    if (vk.vkGetPipelineCacheData(device, cache_, &size, nullptr) != VK_SUCCESS) return;
    bytes.resize(size);
    if (vk.vkGetPipelineCacheData(device, cache_, &size, bytes.data()) != VK_SUCCESS) return;
    bytes.resize(size);
  }
  const std::filesystem::path path = cache_path(offer);
  if (path.empty()) return;
  std::error_code failed;
  std::filesystem::create_directories(path.parent_path(), failed);
  const std::filesystem::path fresh = path.string() + fmt::format(".{}", os::process_id());
  {
    std::ofstream file(fresh, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file) failed = std::make_error_code(std::errc::io_error);
  }
  if (failed || !os::replace_file(fresh.string(), path.string()).ok()) {
    std::filesystem::remove(fresh, failed);
    log::debug("Vulkan's pipelines are not kept in {}; the next start makes them again", path.string());
  }
}

Expected<VkPipeline> Driver::pipeline(const Kernel& kernel, std::span<const std::uint32_t> constants) {
  const MutexLock lock(mutex_);
  std::pair key(kernel.name, std::vector<std::uint32_t>(constants.begin(), constants.end()));
  if (const auto found = pipelines_.find(key); found != pipelines_.end()) return found->second;
  MR_ASSIGN_OR_RETURN(VkPipeline made, make_pipeline(kernel, constants));
  new_pipelines_ = true;
  pipelines_.emplace(std::move(key), made);
  return made;
}

Expected<VkPipeline> Driver::make_pipeline(const Kernel& kernel, std::span<const std::uint32_t> constants) {
  const std::vector<std::uint32_t> code = without_controls(kernel.code, offer);
  auto module_info = chained<VkShaderModuleCreateInfo>(VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO);
  module_info.codeSize = code.size() * sizeof(std::uint32_t);
  module_info.pCode = code.data();
  VkShaderModule shader = nullptr;
  MR_VULKAN(vk.vkCreateShaderModule(device, &module_info, nullptr, &shader));
  std::vector<std::uint32_t> values = {fma == Fma::own ? 1u : 0u};
  values.insert(values.end(), constants.begin(), constants.end());
  std::vector<VkSpecializationMapEntry> entries;
  for (std::uint32_t i = 0; i < values.size(); ++i)
    entries.push_back({i, static_cast<std::uint32_t>(i * sizeof(std::uint32_t)), sizeof(std::uint32_t)});
  const VkSpecializationInfo specialised{static_cast<std::uint32_t>(entries.size()), entries.data(),
                                         values.size() * sizeof(std::uint32_t), values.data()};
  auto info = chained<VkComputePipelineCreateInfo>(VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO);
  info.stage = chained<VkPipelineShaderStageCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO);
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = shader;
  info.stage.pName = "main";
  info.stage.pSpecializationInfo = &specialised;
  info.layout = layout;
  VkPipeline made = nullptr;
  const VkResult result = vk.vkCreateComputePipelines(device, cache_, 1, &info, nullptr, &made);
  vk.vkDestroyShaderModule(device, shader, nullptr);
  if (const Status status = vulkan_status(result, "vkCreateComputePipelines"); !status.ok())
    return status.with_context(kernel.name);
  return made;
}

// --- Queues ---

std::uint32_t Driver::next_queue() {
  const MutexLock lock(mutex_);
  return streams_++ % offer.queues;
}

Status Driver::submit(std::uint32_t queue, const VkSubmitInfo& info) {
  Queue& to = *queues_[queue];
  const MutexLock lock(to.mutex);
  MR_VULKAN(vk.vkQueueSubmit(to.queue, 1, &info, nullptr));
  return {};
}

Status Driver::wait_idle() MR_NO_THREAD_SAFETY_ANALYSIS {
  for (const auto& queue : queues_) queue->mutex.lock();  // the call is about all of them
  const VkResult result = vk.vkDeviceWaitIdle(device);
  for (const auto& queue : queues_) queue->mutex.unlock();
  return vulkan_status(result, "vkDeviceWaitIdle");
}

}  // namespace millrace::device::vulkan

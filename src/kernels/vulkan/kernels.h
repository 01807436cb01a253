// Vulkan's kernels as the build embedded them, and how a launcher puts one on a stream. Compiled only where the GPU
// part is Vulkan's. Thread-safety: constants, and functions from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "device/vulkan/stream.h"
#include "tensor/dtype.h"

namespace millrace::kernels::vulkan {

using device::vulkan::Dispatch;
using device::vulkan::Kernel;

extern const Kernel kRmsNorm, kQuantize, kElementwise, kGatherRows, kRopeStore, kAttention, kCandidates, kDraw;
extern const Kernel kRoute, kSortEntries, kCombine;
extern const Kernel kConvolve, kStateRows, kTimeStep, kL2Norm, kNormParts, kGatedNorm, kSigmoidGate, kCopyColumns;
extern const Kernel kChoose, kActivateEntries, kScaleBy, kTemper;
/// Of one dtype; null: there is none.
const Kernel* embed_kernel(DType dtype);
const Kernel* product_kernel(DType dtype);
const Kernel* chosen_product_kernel(DType dtype);
// Of quantized dtypes, for devices with packed dot products.
const Kernel* row_product_kernel(DType dtype);
const Kernel* tile_product_kernel(DType dtype);

/// A pointer into the device's memory as kernels take it.
inline std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

struct Groups {
  std::int64_t x = 1, y = 1, z = 1;
};
constexpr std::int64_t kMostGroups = 65'535;  // of a dimension, on every device

/// Arguments as the kernel's push constants lie: addresses first, then words.
template <typename Arguments>
Dispatch dispatch(const Kernel& kernel, const Arguments& arguments, Groups groups,
                  std::vector<std::uint32_t> constants = {}) {
  static_assert(std::is_trivially_copyable_v<Arguments> && sizeof(Arguments) <= device::vulkan::kMostArgumentBytes);
  Dispatch made;
  made.kernel = &kernel;
  made.constants = std::move(constants);
  made.arguments.resize(sizeof arguments);
  std::memcpy(made.arguments.data(), &arguments, sizeof arguments);
  made.groups[0] = static_cast<std::uint32_t>(groups.x);
  made.groups[1] = static_cast<std::uint32_t>(groups.y);
  made.groups[2] = static_cast<std::uint32_t>(groups.z);
  return made;
}

/// Workgroups for so much work, `each` of it apiece.
inline std::int64_t groups_of(std::int64_t work, std::int64_t each) { return (work + each - 1) / each; }
/// The same in two dimensions where they are more than one has; the kernel leaves out those behind the last.
inline Groups spread(std::int64_t groups) {
  const std::int64_t x = groups < kMostGroups ? groups : kMostGroups;
  return {x, groups_of(groups, x)};
}
/// A call that its maker had to keep away from.
inline Status broken(const char* what) { return error(Code::internal, "no Vulkan kernel takes {}", what); }
inline Status put(device::StreamRef stream, const Dispatch& one) { return device::vulkan::launch(stream, {&one, 1}); }

}  // namespace millrace::kernels::vulkan

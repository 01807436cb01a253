// An open Vulkan device: its memory in pieces that are found by address, its queues, and the pipelines made of kernels.
// docs/internals/vulkan.md explains how device/device.h stands on it. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "device/device.h"
#include "device/vulkan/calls.h"

namespace millrace::device::vulkan {

/// How a device multiplies and adds in one step, found by the self-test when it is opened.
enum class Fma : std::uint8_t {
  fused,  // by its own instruction, which rounds once
  own,    // of additions and multiplications (kernels/vulkan/numerics.glsl), because its own rounds twice
};

/// What a physical device offers.
struct Offer {
  VkPhysicalDevice physical = nullptr;
  std::string name, driver;  // "llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe Mesa 22.3.6"
  std::uint32_t api = 0;     // VK_API_VERSION
  bool discrete = false, processor = false;
  std::uint64_t memory_bytes = 0;                     // of the largest heap that is the device's own
  std::uint32_t shared_bytes = 0, group_threads = 0;  // of a workgroup
  std::uint64_t piece_bytes = 0;                      // that an allocation has at most
  std::uint32_t queue_family = 0, queues = 0;
  float nanoseconds = 0;  // of a tick of its timestamps; 0: it has none
  bool host_import = false, memory_budget = false;
  bool packed_dots = false;  // of four bytes each (VK_KHR_shader_integer_dot_product)
  std::uint64_t import_alignment = 4096;
  bool preserves_denormals = false, signed_zeros = false, rounds_to_even = false;  // float controls that can be asked
  std::string lacks;  // what kernels need and it has not; empty: it can compute
};
/// Every physical device, in the loader's order. Errors: unsupported.
Expected<std::vector<Offer>> offers();

/// A buffer with memory of its own. bytes() from address on are the device's view of it.
struct Piece {
  VkBuffer buffer = nullptr;
  VkDeviceMemory memory = nullptr;
  std::uint64_t address = 0, bytes = 0;
  std::byte* mapped = nullptr;  // where the host sees it, if it does
};
/// Where an address lies: within a piece, so many bytes behind its start.
struct Place {
  VkBuffer buffer = nullptr;
  std::uint64_t offset = 0;
};

/// A kernel's SPIR-V, as the build embedded it.
struct Kernel {
  const char* name;
  std::span<const std::uint32_t> code;
};
constexpr std::size_t kMostArgumentBytes = 128;  // of push constants, that every device has

class Driver {
 public:
  /// The process's device, opened at the first call, which runs the self-test. It stays open until the process ends.
  /// Errors: unsupported (no such device, something is missing, another one is open), io_error.
  static Expected<Driver*> open(int index);
  /// The one that is open, or the first. Errors: as open().
  static Expected<Driver*> get();

  enum class Where : std::uint8_t { device, host };  // host: the host writes and reads it, coherently
  /// Errors: out_of_budget.
  Expected<Piece> make_piece(std::uint64_t bytes, Where where) MR_EXCLUDES(mutex_);
  /// The host's memory as the device sees it. Errors: unsupported (the driver imports none), out_of_budget.
  Expected<Piece> import(std::byte* host, std::uint64_t bytes) MR_EXCLUDES(mutex_);
  void drop(const Piece& piece) MR_EXCLUDES(mutex_);
  /// The piece that begins at that address of the device, or of the host.
  void drop_at(std::uint64_t address) MR_EXCLUDES(mutex_);
  void drop_host(const std::byte* host) MR_EXCLUDES(mutex_);
  /// None: the address is in no piece, or the range goes beyond it.
  std::optional<Place> find(std::uint64_t address, std::uint64_t bytes) MR_EXCLUDES(mutex_);
  std::optional<Place> find_host(const std::byte* host, std::uint64_t bytes) MR_EXCLUDES(mutex_);
  /// The device's address of imported memory.
  std::optional<std::uint64_t> address_of_host(const std::byte* host) MR_EXCLUDES(mutex_);
  /// Of the largest heap of the device's own: by the driver's budget where it tells one, else by what was allocated.
  VramState memory_state() MR_EXCLUDES(mutex_);

  /// Made at the first call for these constants (specialisation constants 1, 2, ...; 0 is the device's Fma), or found
  /// in the cache on the disk. Errors: io_error, out_of_budget.
  Expected<VkPipeline> pipeline(const Kernel& kernel, std::span<const std::uint32_t> constants) MR_EXCLUDES(mutex_);
  /// Writes pipelines that are new since the last call to the cache on the disk; a failure costs the next start time.
  void keep_pipelines() MR_EXCLUDES(mutex_);

  /// Streams share the device's queues, one after the other.
  std::uint32_t next_queue() MR_EXCLUDES(mutex_);
  Status submit(std::uint32_t queue, const VkSubmitInfo& info);
  /// Waits until nothing is under way on any queue.
  Status wait_idle();

  const DeviceCalls vk;
  const VkDevice device;
  const Offer offer;
  const int index;
  const VkPipelineLayout layout;
  Fma fma = Fma::own;
  bool promises_bits = false;  // the self-test found every operation exact

 private:
  struct Queue {
    VkQueue queue = nullptr;
    Mutex mutex;
  };
  Driver(const DeviceCalls& calls, VkDevice opened, Offer of, int number, VkPipelineLayout pipelines);
  static Expected<std::unique_ptr<Driver>> make(int index);
  void load_pipelines();
  Expected<VkPipeline> make_pipeline(const Kernel& kernel, std::span<const std::uint32_t> constants)
      MR_REQUIRES(mutex_);
  Expected<Piece> bind(VkBuffer buffer, std::uint64_t bytes, std::uint32_t type, const void* import, bool map)
      MR_EXCLUDES(mutex_);
  Expected<VkBuffer> make_buffer(std::uint64_t bytes, bool imported) const;
  std::optional<std::uint32_t> memory_type(std::uint32_t among, VkMemoryPropertyFlags wanted) const;

  VkPhysicalDeviceMemoryProperties memories_{};
  std::vector<std::unique_ptr<Queue>> queues_;
  VkPipelineCache cache_ = nullptr;
  Mutex mutex_;
  std::map<std::uint64_t, Piece> pieces_ MR_GUARDED_BY(mutex_);       // by the device's address
  std::map<const std::byte*, Piece> imported_ MR_GUARDED_BY(mutex_);  // by the host's
  std::map<std::pair<const char*, std::vector<std::uint32_t>>, VkPipeline> pipelines_ MR_GUARDED_BY(mutex_);
  bool new_pipelines_ MR_GUARDED_BY(mutex_) = false;
  std::uint64_t used_bytes_ MR_GUARDED_BY(mutex_) = 0;
  std::uint32_t streams_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::device::vulkan

// device/device.h over a Vulkan device: memory, copies, and what is asked of the device as a whole. stream.cpp has
// streams, events and recorded passes. An address of a DeviceBuffer is the device's own (bufferDeviceAddress), which
// the host never follows; copies find the buffer that it lies in.
#include "device/device.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "device/range.h"
#include "device/vulkan/driver.h"
#include "device/vulkan/stream.h"

namespace millrace::device {

DeviceCounters stream_counters();  // stream.cpp

namespace {

using vulkan::Driver;
using vulkan::Held;
using vulkan::Piece;
using vulkan::Place;

std::atomic<std::uint64_t> host_copies{0}, allocations{0};
constexpr std::uint64_t kReadableBehind = 256;  // that kernels may read behind the last byte
constexpr std::uint64_t kWord = 4;              // that fills and copies of kernels count in

std::uint64_t address_of(const void* device) { return reinterpret_cast<std::uint64_t>(device); }

Expected<Place> place_of(Driver& driver, const void* device, std::uint64_t bytes) {
  if (const auto place = driver.find(address_of(device), bytes)) return *place;
  return error(Code::internal, "{} bytes at {:#x} are not the Vulkan device's", bytes, address_of(device));
}

/// Memory of the host that goes when the last who holds it does.
class Staging {
 public:
  static Expected<std::shared_ptr<Staging>> create(Driver& driver, std::uint64_t bytes) {
    MR_ASSIGN_OR_RETURN(const Piece piece, driver.make_piece(round_up(bytes, kWord), Driver::Where::host));
    return std::make_shared<Staging>(driver, piece);
  }
  Staging(Driver& driver, const Piece& piece) : driver_(driver), piece_(piece) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() { driver_.drop(piece_); }
  std::byte* data() const { return piece_.mapped; }
  Place place() const { return {piece_.buffer, 0}; }

 private:
  Driver& driver_;
  const Piece piece_;
};

void copy(const Driver& driver, VkCommandBuffer commands, const Place& to, const Place& from, std::uint64_t bytes) {
  const VkBufferCopy region{from.offset, to.offset, bytes};
  driver.vk.vkCmdCopyBuffer(commands, from.buffer, to.buffer, 1, &region);
}

}  // namespace

DeviceCounters device_counters() {
  DeviceCounters counters = stream_counters();
  counters.copies_to_host = host_copies;
  counters.allocations = allocations;
  return counters;
}

// --- The device ---

void load_all_kernels_first() {}  // pipelines are made one by one, and no launch waits for a device meanwhile
Status use_gpu(int index) { return Driver::open(index).status(); }
Expected<int> present_gpu() {
  MR_ASSIGN_OR_RETURN(const Driver* const driver, Driver::get());
  return driver->index;
}
Status synchronise_gpu() { return vulkan::drain(); }
OnGpu::OnGpu(int) {}  // a process has one device
OnGpu::~OnGpu() = default;
Status allow_stores_to(int other) {
  MR_ASSIGN_OR_RETURN(const int present, present_gpu());
  if (other == present) return {};
  return error(Code::unsupported, "Vulkan devices do not write to each other's memory here; use one");
}

Expected<VramState> vram_state() {
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  return driver->memory_state();
}
Expected<VramState> vram_state_without_context(int) {
  return error(Code::unsupported, "what is free is known once the Vulkan device is open");
}

// --- Memory ---

Expected<DeviceBuffer> DeviceBuffer::allocate(std::size_t bytes) {
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  const std::uint64_t taken = allocation_bytes(std::max<std::size_t>(bytes, 1));
  Expected<Piece> piece = driver->make_piece(taken, Driver::Where::device);
  if (!piece.ok()) return piece.status().with_context(format_bytes(bytes) + " of the GPU's memory");
  ++allocations;
  DeviceBuffer buffer;
  buffer.data_ = reinterpret_cast<std::byte*>(piece->address);
  buffer.bytes_ = bytes;
  return buffer;
}
DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  (void)vulkan::drain();  // what is under way may still use it
  if (const auto driver = Driver::get(); driver.ok()) (*driver)->drop_at(address_of(data_));
}
std::uint64_t allocation_bytes(std::uint64_t bytes) { return round_up(bytes + kReadableBehind, 4096); }

Expected<PinnedBuffer> PinnedBuffer::allocate(std::size_t bytes, bool) {
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  PinnedBuffer buffer;
  const std::uint64_t whole = round_up(std::max<std::size_t>(bytes, 1), driver->offer.import_alignment);
  MR_ASSIGN_OR_RETURN(buffer.memory_, HostBuffer::reserve(whole, Pages::normal));
  // Where the driver imports none, copies go through memory of its own instead.
  if (!driver->offer.host_import) return buffer;
  std::memset(buffer.data(), 0, buffer.bytes());
  if (const Status taken = driver->import(buffer.data(), whole).status(); !taken.ok()) {
    log::debug("the Vulkan device does not take {} of the host's memory ({}); copies go through memory of its own",
               format_bytes(whole), taken.message());
    return buffer;
  }
  buffer.registered_ = true;
  return buffer;
}
PinnedBuffer::~PinnedBuffer() {
  if (!registered_) return;
  (void)vulkan::drain();
  if (const auto driver = Driver::get(); driver.ok()) (*driver)->drop_host(data());
}
Expected<std::byte*> seen_by_gpu(const void* host) {
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  const auto* const at = static_cast<const std::byte*>(host);
  const auto address = driver->address_of_host(at);
  if (!address) return error(Code::unsupported, "the Vulkan device does not see this memory of the host");
  return reinterpret_cast<std::byte*>(*address);
}

Expected<std::unique_ptr<Range>> reserve_device_range(std::uint64_t) {
  return error(Code::unsupported, "memory that comes and goes within a range of addresses is not there on Vulkan yet");
}

// --- Copies ---

Status copy_to_host(void* host, const void* device, std::size_t bytes, StreamRef stream) {
  if (bytes == 0) return {};
  ++host_copies;
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  MR_ASSIGN_OR_RETURN(const Place from, place_of(*driver, device, bytes));
  if (const auto to = driver->find_host(static_cast<std::byte*>(host), bytes))
    return vulkan::put(stream, [&](VkCommandBuffer commands, Held&) -> Status {
      copy(*driver, commands, *to, from, bytes);
      return {};
    });
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<Staging> staging, Staging::create(*driver, bytes));
  MR_RETURN_IF_ERROR(vulkan::put(stream, [&](VkCommandBuffer commands, Held& held) -> Status {
    copy(*driver, commands, staging->place(), from, bytes);
    held.push_back(staging);
    return {};
  }));
  MR_RETURN_IF_ERROR(vulkan::finish(stream));
  std::memcpy(host, staging->data(), bytes);
  return {};
}

Status copy_to_device(void* device, const void* host, std::size_t bytes, StreamRef stream) {
  if (bytes == 0) return {};
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  MR_ASSIGN_OR_RETURN(const Place to, place_of(*driver, device, bytes));
  if (const auto from = driver->find_host(static_cast<const std::byte*>(host), bytes))
    return vulkan::put(stream, [&](VkCommandBuffer commands, Held&) -> Status {
      copy(*driver, commands, to, *from, bytes);
      return {};
    });
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<Staging> staging, Staging::create(*driver, bytes));
  std::memcpy(staging->data(), host, bytes);
  return vulkan::put(stream, [&](VkCommandBuffer commands, Held& held) -> Status {
    copy(*driver, commands, to, staging->place(), bytes);
    held.push_back(staging);
    return {};
  });
}

Status copy_on_device(void* to, const void* from, std::size_t bytes, StreamRef stream) {
  if (bytes == 0) return {};
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  MR_ASSIGN_OR_RETURN(const Place target, place_of(*driver, to, bytes));
  MR_ASSIGN_OR_RETURN(const Place source, place_of(*driver, from, bytes));
  return vulkan::put(stream, [&](VkCommandBuffer commands, Held&) -> Status {
    copy(*driver, commands, target, source, bytes);
    return {};
  });
}

Status fill_device(void* device, std::uint8_t value, std::size_t bytes, StreamRef stream) {
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  const std::uint64_t words = address_of(device) % kWord == 0 ? bytes / kWord * kWord : 0;
  if (words > 0) {
    MR_ASSIGN_OR_RETURN(const Place to, place_of(*driver, device, words));
    MR_RETURN_IF_ERROR(vulkan::put(stream, [&](VkCommandBuffer commands, Held&) -> Status {
      driver->vk.vkCmdFillBuffer(commands, to.buffer, to.offset, words, value * 0x01010101u);
      return {};
    }));
  }
  const std::vector<std::byte> rest(bytes - words, std::byte{value});
  return copy_to_device(static_cast<std::byte*>(device) + words, rest.data(), rest.size(), stream);
}

Status write_device(void* device, const void* host, std::size_t bytes) {
  return copy_to_device(device, host, bytes, {});
}
Status read_device(void* host, const void* device, std::size_t bytes) {
  --host_copies;  // counted are those of streams
  const Status status = copy_to_host(host, device, bytes, {});
  if (bytes == 0) ++host_copies;
  return status;
}
Status read_device_rows(void* host, std::size_t host_pitch, const void* device, std::size_t device_pitch,
                        std::size_t bytes, std::size_t rows) {
  if (rows == 0 || bytes == 0) return {};
  std::vector<std::byte> all((rows - 1) * device_pitch + bytes);
  MR_RETURN_IF_ERROR(read_device(all.data(), device, all.size()));
  for (std::size_t r = 0; r < rows; ++r)
    std::memcpy(static_cast<std::byte*>(host) + r * host_pitch, all.data() + r * device_pitch, bytes);
  return {};
}
Status move_on_device(void* to, const void* from, std::size_t bytes) { return copy_on_device(to, from, bytes, {}); }
Status clear_device(const DeviceBuffer& memory) { return fill_device(memory.data(), 0, memory.bytes(), {}); }

ProfilerRange::ProfilerRange(const char*) {}
ProfilerRange::~ProfilerRange() = default;

}  // namespace millrace::device

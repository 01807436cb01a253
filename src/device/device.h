// The interface to a GPU for everything above the driver: memory, streams, events, recorded passes and copies, all
// move-only. No driver type appears here; device/cuda_runtime.h has CUDA's types, for the implementation and the
// kernels. Compiled only if there is a GPU part. Counters record the calls to the driver, so that tests can verify that
// a decode step makes one launch and one read-back.
//
// Each thread has a current device: use_gpu() and OnGpu set it, and calls without a stream refer to it.
// Thread-safety: an object has one owner; counters are atomic. Errors: a failed driver call becomes a Status that names
// the call. A sticky error (the driver has lost the device) is Code::io_error: no result of this device can be trusted
// until the process restarts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "device/host_memory.h"

namespace millrace::device {

/// Counts since the process started.
struct DeviceCounters {
  std::uint64_t graph_launches = 0;
  std::uint64_t kernel_launches = 0;  // outside of graphs
  std::uint64_t copies_to_host = 0;   // outside of graphs
  std::uint64_t synchronisations = 0;
  std::uint64_t allocations = 0;  // of device memory
};
DeviceCounters device_counters();
/// Counts kernels that a caller of the launchers puts on a stream itself.
void count_kernels(std::uint64_t kernels);

/// Must be the first call if several GPUs will compute: kernels are then loaded at program start, not at their first
/// launch. Loading a kernel can wait for a device, which can wait for another device, whose launch waits for the
/// driver: a deadlock.
void load_all_kernels_first();
/// Makes device `index` the current one of this thread, and initialises it. Errors: unsupported.
Status use_gpu(int index);
/// The index of the current device.
Expected<int> present_gpu();
/// Waits until the current device has finished all work.
Status synchronise_gpu();
/// Makes device `index` the current one of this thread until the end of the scope.
class OnGpu {
 public:
  explicit OnGpu(int index);
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu();

 private:
  int before_ = 0;
};
/// Lets the current device write to the memory of `other`, which may be the same device. Errors: unsupported (there is
/// no peer access).
Status allow_stores_to(int other);
/// Free and total bytes of the current device. Errors: io_error.
struct VramState {
  std::uint64_t free_bytes = 0, total_bytes = 0;
};
Expected<VramState> vram_state();
/// The same before a context exists, from the driver's management library (NVML). Errors: unsupported without NVML.
Expected<VramState> vram_state_without_context(int index);

/// Memory on the device, 256-byte aligned.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Errors: out_of_budget when the device has no room.
  static Expected<DeviceBuffer> allocate(std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// The device memory that the driver reserves for an allocation of so many bytes.
std::uint64_t allocation_bytes(std::uint64_t bytes);

/// Page-locked host memory: touched in huge pages, then registered, which is many times as fast as cudaMallocHost.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  /// for_all: every GPU may use the memory, not only the current one. Errors: out_of_budget.
  static Expected<PinnedBuffer> allocate(std::size_t bytes, bool for_all = false);
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : memory_(std::move(other.memory_)), registered_(std::exchange(other.registered_, false)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(registered_, other.registered_);
    return *this;
  }
  ~PinnedBuffer();
  std::byte* data() const { return memory_.data(); }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  HostBuffer memory_;
  bool registered_ = false;
};

/// The address of page-locked memory on the current device. Errors: io_error.
Expected<std::byte*> seen_by_gpu(const void* host);

/// A non-owning reference to a stream: one that a Stream owns, or a caller's, by the driver's handle. The holder must
/// ensure that the stream outlives the reference.
struct StreamRef {
  void* native = nullptr;
};

/// A queue of work that the device executes in order.
class Stream {
 public:
  Stream() = default;
  static Expected<Stream> create();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, {})) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream();
  operator StreamRef() const { return stream_; }  // NOLINT(google-explicit-constructor)
  Status synchronise() const;

 private:
  StreamRef stream_;
};
/// Whether all work on the stream has finished. Errors: io_error, with the failure.
Expected<bool> is_idle(StreamRef stream);

/// A non-owning reference to an event, like StreamRef.
struct EventRef {
  void* native = nullptr;
  bool none() const { return native == nullptr; }
};

/// A point in a stream, which the device reaches once for each time that it is recorded.
class Event {
 public:
  Event() = default;
  /// timed: milliseconds() may use the event.
  static Expected<Event> create(bool timed = false);
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, {})) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();
  operator EventRef() const { return event_; }  // NOLINT(google-explicit-constructor)

 private:
  EventRef event_;
};
/// Records the event after the work that is on the stream now.
Status record(EventRef event, StreamRef stream);
/// Whether the device has reached the event; true for one that was never recorded. Errors: io_error.
Expected<bool> is_reached(EventRef event);
/// Waits until the device has reached the event.
Status wait(EventRef event);
/// Makes all later work on the stream wait for the event, on the device.
Status wait_on_device(StreamRef stream, EventRef event);
/// The milliseconds between two events that were reached. REQUIRES: both are timed.
Expected<float> milliseconds(EventRef begin, EventRef end);

/// The work that was recorded from a stream, ready to be launched any number of times.
class RecordedPass {
 public:
  RecordedPass() = default;
  /// From here on, work that this thread puts on `stream` is recorded, not executed.
  static Status begin(const Stream& stream);
  /// Ends what begin() began.
  static Expected<RecordedPass> end(const Stream& stream);
  RecordedPass(RecordedPass&& other) noexcept : pass_(std::exchange(other.pass_, nullptr)) {}
  RecordedPass& operator=(RecordedPass&& other) noexcept {
    std::swap(pass_, other.pass_);
    return *this;
  }
  ~RecordedPass();
  Status launch(const Stream& stream) const;

 private:
  void* pass_ = nullptr;
};

/// A named range for NVIDIA's profilers until the end of the scope; costs almost nothing without a profiler.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name);
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
  ~ProfilerRange();
};

/// These functions put a copy on a stream. Copies to the host are counted.
Status copy_to_host(void* host, const void* device, std::size_t bytes, StreamRef stream);
Status copy_to_device(void* device, const void* host, std::size_t bytes, StreamRef stream);
Status copy_on_device(void* to, const void* from, std::size_t bytes, StreamRef stream);
Status fill_device(void* device, std::uint8_t value, std::size_t bytes, StreamRef stream);
/// These functions return when the copy is complete, so that later launches on any stream see the bytes.
Status write_device(void* device, const void* host, std::size_t bytes);
Status read_device(void* host, const void* device, std::size_t bytes);
/// `rows` rows of `bytes` each, host_pitch and device_pitch bytes apart.
Status read_device_rows(void* host, std::size_t host_pitch, const void* device, std::size_t device_pitch,
                        std::size_t bytes, std::size_t rows);
Status move_on_device(void* to, const void* from, std::size_t bytes);
Status clear_device(const DeviceBuffer& memory);

}  // namespace millrace::device

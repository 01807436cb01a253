// A GPU as everything above its driver sees it: memory, streams, events, recorded passes and copies, each move-only. No
// type of a driver shows here: device/cuda_runtime.h has CUDA's, for what stands below this interface and the kernels.
// Compiled only where there is a GPU part. Counters say what was asked of the driver, so that tests can hold a decode
// step to one launch and one read-back.
//
// The present device is the calling thread's: use_gpu() and OnGpu set it, and calls without a stream are about it.
// Thread-safety: an object has one owner; counters are atomic. Errors: a failed call becomes a Status that names it.
// A sticky error (the driver has lost the device) is Code::io_error: nothing on this device can be trusted until the
// process starts again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "device/host_memory.h"

namespace millrace::device {

/// Since the process began.
struct DeviceCounters {
  std::uint64_t graph_launches = 0;
  std::uint64_t kernel_launches = 0;  // outside of graphs
  std::uint64_t copies_to_host = 0;   // outside of graphs
  std::uint64_t synchronisations = 0;
  std::uint64_t allocations = 0;  // of device memory
};
DeviceCounters device_counters();
/// For launchers' callers: kernels put on a stream by hand.
void count_kernels(std::uint64_t kernels);

/// To be called before any other call, where several GPUs will compute: kernels are loaded when the program
/// starts, not at their first launch. A driver that loads one may wait for a device, and that for another one, whose
/// launch waits for the driver.
void load_all_kernels_first();
/// Makes device `index` this thread's, and ready for work. Errors: unsupported.
Status use_gpu(int index);
/// The number of the present device.
Expected<int> present_gpu();
/// Waits until nothing is under way on the present device.
Status synchronise_gpu();
/// Makes device `index` this thread's for the scope's length.
class OnGpu {
 public:
  explicit OnGpu(int index);
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu();

 private:
  int before_ = 0;
};
/// Lets the present device write to the memory of `other`, which it may be itself. Errors: unsupported (nothing leads
/// there).
Status allow_stores_to(int other);
/// Free and total bytes of the present device. Errors: io_error.
struct VramState {
  std::uint64_t free_bytes = 0, total_bytes = 0;
};
Expected<VramState> vram_state();
/// The same before there is a context, by the driver's management library; unsupported where that is not to be had.
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

/// What the driver takes of device memory for an allocation of so many bytes.
std::uint64_t allocation_bytes(std::uint64_t bytes);

/// Page-locked host memory: first touched in huge pages, then registered, which is many times as fast as
/// cudaMallocHost.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  /// for_all: every GPU may use it, not this thread's alone. Errors: out_of_budget.
  static Expected<PinnedBuffer> allocate(std::size_t bytes, bool for_all = false);
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : memory_(std::move(other.memory_)), registered_(std::exchange(other.registered_, false)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();
  std::byte* data() const { return memory_.data(); }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  HostBuffer memory_;
  bool registered_ = false;
};

/// The same page-locked memory as the present device sees it. Errors: io_error.
Expected<std::byte*> seen_by_gpu(const void* host);

/// Which stream: one that a Stream owns, or a caller's own, by the driver's handle. Whoever holds one sees to it that
/// the stream lives.
struct StreamRef {
  void* native = nullptr;
};

/// Work that the device does in the order in which it comes.
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
/// Whether all that came onto the stream has ended. Errors: io_error, what ended it.
Expected<bool> is_idle(StreamRef stream);

/// Which event, as StreamRef.
struct EventRef {
  void* native = nullptr;
  bool none() const { return native == nullptr; }
};

/// A point of a stream that is reached once each time that it is recorded.
class Event {
 public:
  Event() = default;
  /// timed: milliseconds() may be asked.
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
/// The event is behind what is on the stream now.
Status record(EventRef event, StreamRef stream);
/// Whether it is reached; one that was never recorded is. Errors: io_error.
Expected<bool> is_reached(EventRef event);
/// Waits until it is.
Status wait(EventRef event);
/// What comes onto the stream from now on waits for the event on the device.
Status wait_on_device(StreamRef stream, EventRef event);
/// Between two that are reached, both timed.
Expected<float> milliseconds(EventRef begin, EventRef end);

/// What was put on a stream while it was recorded, ready to be launched any number of times.
class RecordedPass {
 public:
  RecordedPass() = default;
  /// From here on, what this thread puts on `stream` is recorded, not done.
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

/// A named range in NVIDIA's profilers for the scope's length; costs next to nothing without one.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name);
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
  ~ProfilerRange();
};

/// These put a copy on a stream. To the host: counted.
Status copy_to_host(void* host, const void* device, std::size_t bytes, StreamRef stream);
Status copy_to_device(void* device, const void* host, std::size_t bytes, StreamRef stream);
Status copy_on_device(void* to, const void* from, std::size_t bytes, StreamRef stream);
Status fill_device(void* device, std::uint8_t value, std::size_t bytes, StreamRef stream);
/// These return when the bytes lie there, so that any stream's later launches see them.
Status write_device(void* device, const void* host, std::size_t bytes);
Status read_device(void* host, const void* device, std::size_t bytes);
/// `rows` rows of `bytes` each, host_pitch and device_pitch bytes apart.
Status read_device_rows(void* host, std::size_t host_pitch, const void* device, std::size_t device_pitch,
                        std::size_t bytes, std::size_t rows);
Status move_on_device(void* to, const void* from, std::size_t bytes);
Status clear_device(const DeviceBuffer& memory);

}  // namespace millrace::device

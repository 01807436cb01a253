// CUDA as RAII: device memory, page-locked host memory, streams, events and graphs, each move-only; and counters of
// what was asked of the driver, so that tests can hold a decode step to one launch and one read-back. Compiled only
// where there is CUDA. Thread-safety: an object has one owner; counters are atomic. Errors: a failed call becomes a
// Status that names the call. A sticky error (the context is lost) is Code::io_error: nothing on this device can be
// trusted until the process starts again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "device/host_memory.h"

namespace millrace::device {

/// Ok, or what failed, where: "cudaMemcpyAsync: out of memory".
Status cuda_status(cudaError_t code, const char* call);

#define MR_CUDA(call)                                                                                             \
  do {                                                                                                            \
    if (::millrace::Status mr_cuda_status = ::millrace::device::cuda_status((call), #call); !mr_cuda_status.ok()) \
      return mr_cuda_status;                                                                                      \
  } while (false)

/// Since the process began.
struct CudaCounters {
  std::uint64_t graph_launches = 0;
  std::uint64_t kernel_launches = 0;  // outside of graphs
  std::uint64_t copies_to_host = 0;   // outside of graphs
  std::uint64_t synchronisations = 0;
  std::uint64_t allocations = 0;  // of device memory
};
CudaCounters cuda_counters();
/// For launchers' callers: kernels put on a stream by hand.
void count_kernels(std::uint64_t kernels);

/// Makes device `index` this thread's and creates its context. Errors: unsupported.
Status use_gpu(int index);
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

class Stream {
 public:
  Stream() = default;
  static Expected<Stream> create();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream();
  cudaStream_t get() const { return stream_; }
  Status synchronise() const;

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() = default;
  static Expected<Event> create(bool timed = false);
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A captured stream, ready to be launched any number of times.
class Graph {
 public:
  Graph() = default;
  /// Ends the capture that began on `stream` and instantiates what was captured.
  static Expected<Graph> end_capture(const Stream& stream);
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }
  ~Graph();
  Status launch(const Stream& stream) const;

 private:
  cudaGraphExec_t exec_ = nullptr;
};

/// A named range in NVIDIA's profilers for the scope's length; costs next to nothing without one.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name);
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
  ~ProfilerRange();
};

/// Device to host; counted.
Status copy_to_host(void* host, const std::byte* device, std::size_t bytes, const Stream& stream);
Status copy_to_device(std::byte* device, const void* host, std::size_t bytes, const Stream& stream);
/// These return when the bytes lie there, so that any stream's later launches see them: cudaMemcpy from memory that
/// is not page-locked returns once it has read it, and our streams do not wait for the one that it goes through.
Status write_device(void* device, const void* host, std::size_t bytes);
Status copy_on_device(void* to, const void* from, std::size_t bytes);
Status clear_device(const DeviceBuffer& memory);

}  // namespace millrace::device

#include "device/cuda_runtime.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/os/library.h"
#include "base/os/process.h"
#include "base/os/thread.h"
#include "device/link_pace.h"

namespace millrace::device {
namespace {

std::atomic<std::uint64_t> graph_launches{0}, kernel_launches{0}, host_copies{0}, synchronisations{0}, allocations{0};

}  // namespace

Status cuda_status(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return {};
  cudaGetLastError();  // a launch error would otherwise be told twice
  std::string_view name(call);
  name = name.substr(0, name.find('('));
  if (code == cudaErrorMemoryAllocation)
    return error(Code::out_of_budget, "{}: the GPU is out of memory; close what else uses it or give less --vram",
                 name);
  return error(Code::io_error, "{}: {} ({})", name, cudaGetErrorString(code), cudaGetErrorName(code));
}

DeviceCounters device_counters() {
  return {graph_launches.load(), kernel_launches.load(), host_copies.load(), synchronisations.load(),
          allocations.load()};
}

void count_kernels(std::uint64_t kernels) { kernel_launches += kernels; }

void load_all_kernels_first() { os::add_to_environment("CUDA_MODULE_LOADING", "EAGER"); }

Status use_gpu(int index) {
  MR_CUDA(cudaSetDevice(index));
  MR_CUDA(cudaFree(nullptr));  // makes the context now, not at the first launch
  return {};
}

Expected<int> present_gpu() {
  int index = 0;
  MR_CUDA(cudaGetDevice(&index));
  return index;
}

Status synchronise_gpu() {
  MR_CUDA(cudaDeviceSynchronize());
  return {};
}

OnGpu::OnGpu(int index) {
  if (cudaGetDevice(&before_) != cudaSuccess) before_ = index;
  (void)cudaSetDevice(index);  // where it is none, the first call that needs it says so
}

OnGpu::~OnGpu() { (void)cudaSetDevice(before_); }

Status allow_stores_to(int other) {
  int here = 0, possible = 0;
  MR_CUDA(cudaGetDevice(&here));
  if (here == other) return {};
  MR_CUDA(cudaDeviceCanAccessPeer(&possible, here, other));
  if (possible == 0)
    return error(Code::unsupported, "GPU {} cannot store to the memory of GPU {} (no NVLink, and no peers over PCIe)",
                 here, other);
  const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // nobody shall be told of it later
    return {};
  }
  MR_CUDA(code);
  return {};
}

Expected<VramState> vram_state() {
  std::size_t free = 0, total = 0;
  MR_CUDA(cudaMemGetInfo(&free, &total));
  return VramState{free, total};
}

namespace {

/// The driver's management library. Its interface is stable, and only these three calls of it are needed.
struct Management {
  struct Memory {
    unsigned long long total, free, used;
  };
  int (*by_bus)(const char*, void**) = nullptr;
  int (*memory_info)(void*, Memory*) = nullptr;
  bool open = false;
  bool usable = false;
#ifdef _WIN32
  static constexpr const char* kLibrary = "nvml.dll";
#else
  static constexpr const char* kLibrary = "libnvidia-ml.so.1";
#endif

  Management() {
    const auto library = os::Library::load(kLibrary);
    open = library.ok();
    if (!open) return;
    int (*init)() = nullptr;
    library->find("nvmlInit_v2", init);
    library->find("nvmlDeviceGetHandleByPciBusId_v2", by_bus);
    library->find("nvmlDeviceGetMemoryInfo", memory_info);
    usable = init != nullptr && by_bus != nullptr && memory_info != nullptr && init() == 0;
  }
};

}  // namespace

Expected<VramState> vram_state_without_context(int index) {
  static const Management management;
  if (!management.open) return error(Code::unsupported, "{} is not on this machine", Management::kLibrary);
  char bus[32] = {};
  void* handle = nullptr;
  Management::Memory memory{};
  const bool known = management.usable && cudaDeviceGetPCIBusId(bus, sizeof(bus), index) == cudaSuccess &&
                     management.by_bus(bus, &handle) == 0 && management.memory_info(handle, &memory) == 0;
  if (!known) return error(Code::unsupported, "the driver does not report the memory of GPU {}", index);
  return VramState{memory.free, memory.total};
}

Expected<DeviceBuffer> DeviceBuffer::allocate(std::size_t bytes) {
  DeviceBuffer buffer;
  void* data = nullptr;
  if (const cudaError_t code = cudaMalloc(&data, bytes); code != cudaSuccess)
    return cuda_status(code, "cudaMalloc").with_context(fmt::format("{} of VRAM", format_bytes(bytes)));
  ++allocations;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}

/// Backs every page before the driver asks for them one by one; of much memory, by several threads.
static void touch(const HostBuffer& memory) {
  constexpr std::size_t kEach = 1u << 30;
  const std::size_t shares = std::clamp<std::size_t>(memory.bytes() / kEach, 1,
                                                     std::min(16u, std::max(1u, std::thread::hardware_concurrency())));
  const std::size_t share = round_up(memory.bytes() / shares, kHugePageBytes);
  std::vector<std::thread> threads;
  for (std::size_t at = share; at < memory.bytes(); at += share)
    threads.emplace_back(
        [&memory, at, share] { std::memset(memory.data() + at, 0, std::min(share, memory.bytes() - at)); });
  std::memset(memory.data(), 0, std::min(share, memory.bytes()));
  for (std::thread& thread : threads) thread.join();
}

std::uint64_t allocation_bytes(std::uint64_t bytes) {
  // Small ones share a page of the device, others have pages of their own.
  return bytes < kMiB ? round_up(bytes, 512) : round_up(bytes, 2 * kMiB);
}

Expected<PinnedBuffer> PinnedBuffer::allocate(std::size_t bytes, bool for_all) {
  PinnedBuffer buffer;
  MR_ASSIGN_OR_RETURN(buffer.memory_,
                      HostBuffer::reserve(bytes, bytes >= kHugePageBytes ? Pages::huge : Pages::normal));
  touch(buffer.memory_);
  MR_CUDA(cudaHostRegister(buffer.memory_.data(), buffer.memory_.bytes(),
                           for_all ? cudaHostRegisterPortable : cudaHostRegisterDefault));
  buffer.registered_ = true;
  return buffer;
}

PinnedBuffer::~PinnedBuffer() {
  if (registered_) cudaHostUnregister(memory_.data());
}

Expected<std::byte*> seen_by_gpu(const void* host) {
  void* seen = nullptr;
  MR_CUDA(cudaHostGetDevicePointer(&seen, const_cast<void*>(host), 0));
  return static_cast<std::byte*>(seen);
}

Expected<Stream> Stream::create() {
  cudaStream_t made = nullptr;
  MR_CUDA(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  Stream stream;
  stream.stream_ = {made};
  return stream;
}

Stream::~Stream() {
  if (stream_.native != nullptr) cudaStreamDestroy(cuda_stream(stream_));
}

Status Stream::synchronise() const {
  ++synchronisations;
  MR_CUDA(cudaStreamSynchronize(cuda_stream(stream_)));
  return {};
}

/// True: it has ended; false: it is under way, which the driver says as an error that nobody shall be told of later.
static Expected<bool> ended(cudaError_t code, const char* call) {
  if (code == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  MR_RETURN_IF_ERROR(cuda_status(code, call));
  return true;
}

Expected<bool> is_idle(StreamRef stream) { return ended(cudaStreamQuery(cuda_stream(stream)), "cudaStreamQuery"); }

Expected<Event> Event::create(bool timed) {
  cudaEvent_t made = nullptr;
  MR_CUDA(cudaEventCreateWithFlags(&made, timed ? cudaEventDefault : cudaEventDisableTiming));
  Event event;
  event.event_ = {made};
  return event;
}

Event::~Event() {
  if (!event_.none()) cudaEventDestroy(cuda_event(event_));
}

Status record(EventRef event, StreamRef stream) {
  MR_CUDA(cudaEventRecord(cuda_event(event), cuda_stream(stream)));
  return {};
}

Expected<bool> is_reached(EventRef event) { return ended(cudaEventQuery(cuda_event(event)), "cudaEventQuery"); }

Status wait(EventRef event) {
  MR_CUDA(cudaEventSynchronize(cuda_event(event)));
  return {};
}

Status wait_on_device(StreamRef stream, EventRef event) {
  MR_CUDA(cudaStreamWaitEvent(cuda_stream(stream), cuda_event(event), 0));
  return {};
}

Expected<float> milliseconds(EventRef begin, EventRef end) {
  float between = 0;
  MR_CUDA(cudaEventElapsedTime(&between, cuda_event(begin), cuda_event(end)));
  return between;
}

Status RecordedPass::begin(const Stream& stream) {
  MR_CUDA(cudaStreamBeginCapture(cuda_stream(stream), cudaStreamCaptureModeThreadLocal));
  return {};
}

Expected<RecordedPass> RecordedPass::end(const Stream& stream) {
  cudaGraph_t captured = nullptr;
  MR_CUDA(cudaStreamEndCapture(cuda_stream(stream), &captured));
  cudaGraphExec_t made = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&made, captured, 0);
  cudaGraphDestroy(captured);
  MR_CUDA(code);
  RecordedPass pass;
  pass.pass_ = made;
  return pass;
}

RecordedPass::~RecordedPass() {
  if (pass_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(pass_));
}

Status RecordedPass::launch(const Stream& stream) const {
  ++graph_launches;
  MR_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(pass_), cuda_stream(stream)));
  return {};
}

ProfilerRange::ProfilerRange(const char* name) { nvtxRangePushA(name); }
ProfilerRange::~ProfilerRange() { nvtxRangePop(); }

Status copy_to_host(void* host, const void* device, std::size_t bytes, StreamRef stream) {
  ++host_copies;
  MR_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda_stream(stream)));
  return {};
}

namespace {

/// A copy that crosses a paced link, from its begin on.
struct PacedCopy {
  LinkPace* link;
  std::size_t bytes;
  LinkPace::Time end;
};

void begin_paced(void* data) {
  auto* const copy = static_cast<PacedCopy*>(data);
  copy->end = copy->link->crossed(std::chrono::steady_clock::now(), copy->bytes);
}

/// Holds the stream until the link would have carried the copy.
void end_paced(void* data) {
  const std::unique_ptr<PacedCopy> copy(static_cast<PacedCopy*>(data));
  os::limit_oversleep(1000);  // of the driver's thread
  std::this_thread::sleep_until(copy->end);
}

Status copy_at_pace(LinkPace& link, void* device, const void* host, std::size_t bytes, StreamRef stream) {
  auto copy = std::make_unique<PacedCopy>(PacedCopy{&link, bytes, {}});
  MR_CUDA(cudaLaunchHostFunc(cuda_stream(stream), begin_paced, copy.get()));
  PacedCopy* const begun = copy.release();  // its end deletes it; if that is never reached, nobody may
  MR_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda_stream(stream)));
  MR_CUDA(cudaLaunchHostFunc(cuda_stream(stream), end_paced, begun));
  return {};
}

Expected<bool> is_recording(StreamRef stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  MR_CUDA(cudaStreamIsCapturing(cuda_stream(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

Status copy_to_device(void* device, const void* host, std::size_t bytes, StreamRef stream) {
  if (LinkPace* const link = link_pace(); link != nullptr && bytes >= LinkPace::kLeastBytes) {
    MR_ASSIGN_OR_RETURN(const bool recording, is_recording(stream));  // a replay would end the copy twice
    if (!recording) return copy_at_pace(*link, device, host, bytes, stream);
  }
  MR_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda_stream(stream)));
  return {};
}

Status copy_on_device(void* to, const void* from, std::size_t bytes, StreamRef stream) {
  MR_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream(stream)));
  return {};
}

Status fill_device(void* device, std::uint8_t value, std::size_t bytes, StreamRef stream) {
  MR_CUDA(cudaMemsetAsync(device, value, bytes, cuda_stream(stream)));
  return {};
}

// cudaMemcpy from memory that is not page-locked returns once it has read it, and our streams do not wait for the one
// that it goes through.

Status write_device(void* device, const void* host, std::size_t bytes) {
  MR_CUDA(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
  MR_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
  return {};
}

Status read_device(void* host, const void* device, std::size_t bytes) {
  MR_CUDA(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
  return {};
}

Status read_device_rows(void* host, std::size_t host_pitch, const void* device, std::size_t device_pitch,
                        std::size_t bytes, std::size_t rows) {
  MR_CUDA(cudaMemcpy2D(host, host_pitch, device, device_pitch, bytes, rows, cudaMemcpyDeviceToHost));
  return {};
}

Status move_on_device(void* to, const void* from, std::size_t bytes) {
  MR_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
  MR_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
  return {};
}

Status clear_device(const DeviceBuffer& memory) {
  MR_CUDA(cudaMemset(memory.data(), 0, memory.bytes()));
  MR_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
  return {};
}

}  // namespace millrace::device

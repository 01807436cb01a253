// CUDA's runtime over simulated devices. See device.h.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "device.h"

namespace {

using Work = std::function<void()>;
using Clock = std::chrono::steady_clock;
constexpr std::size_t kMiB = std::size_t{1} << 20;

std::uint64_t number_of(const char* name, std::uint64_t otherwise) {
  const char* const said = std::getenv(name);
  return said == nullptr ? otherwise : std::strtoull(said, nullptr, 10);
}
int device_count() { return static_cast<int>(number_of("MILLRACE_SIMULATED_GPUS", 1)); }
std::uint64_t capacity() { return number_of("MILLRACE_SIMULATED_VRAM", 6144) * kMiB; }

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

/// What all devices have given out.
struct Memory {
  struct Block {
    std::size_t bytes = 0, taken = 0;
    int device = 0;
  };
  std::mutex mutex;
  std::map<void*, Block> blocks;
  std::map<int, std::uint64_t> used;

  static Memory& get() {
    static Memory memory;
    return memory;
  }
};

/// As the driver rounds: small blocks share a page.
std::size_t taken_for(std::size_t bytes) {
  const std::size_t page = bytes < kMiB ? 512 : 2 * kMiB;
  return (bytes + page - 1) / page * page;
}

}  // namespace

struct CUevent_st {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t asked = 0, reached = 0;
    Clock::time_point when{};

    void await(std::uint64_t number) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return reached >= number; });
    }
  };
  std::shared_ptr<State> state = std::make_shared<State>();
};

struct CUgraph_st {
  std::vector<Work> works;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<Work>> works;
};

struct CUstream_st {
  explicit CUstream_st(int of) : device(of), thread([this] { work(); }) {}
  ~CUstream_st() {
    {
      const std::lock_guard lock(mutex);
      stops = true;
    }
    changed.notify_all();
    thread.join();
  }

  void add(Work one) {
    {
      const std::lock_guard lock(mutex);
      if (capture != nullptr) return capture->works.push_back(std::move(one));
      queue.push_back(std::move(one));
    }
    changed.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return queue.empty() && !busy;
  }
  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return queue.empty() && !busy; });
  }
  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stops || !queue.empty(); });
      if (queue.empty()) return;
      const Work one = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      current = device;
      one();
      lock.lock();
      busy = false;
      if (queue.empty()) changed.notify_all();
    }
  }

  const int device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  std::unique_ptr<CUgraph_st> capture;
  bool busy = false, stops = false;
  std::thread thread;
};

namespace {

struct Streams {
  std::mutex mutex;
  std::set<cudaStream_t> all;
  static Streams& get() {
    static Streams streams;
    return streams;
  }
};

bool is_null(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }

bool valid(int device) { return device >= 0 && device < device_count(); }

}  // namespace

namespace millrace::simulated {

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  if (is_null(stream)) {
    work();
  } else {
    stream->add(std::move(work));
  }
  return cudaSuccess;
}

bool take(int device, std::uint64_t bytes) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  if (memory.used[device] + bytes > capacity()) return false;
  memory.used[device] += bytes;
  return true;
}

void give(int device, std::uint64_t bytes) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  memory.used[device] -= bytes;
}

}  // namespace millrace::simulated

using millrace::simulated::enqueue;

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    default:
      return "an error of the simulated device";
  }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!valid(device)) return failed(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Simulated GPU");
  properties->totalGlobalMem = capacity();
  properties->sharedMemPerBlockOptin = 163 * 1024;
  properties->major = 8;
  properties->multiProcessorCount = 2;
  properties->l2CacheSize = static_cast<int>(kMiB);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device); error != cudaSuccess) return error;
  *value = attribute == cudaDevAttrL2CacheSize ? properties.l2CacheSize : properties.multiProcessorCount;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  std::snprintf(id, static_cast<std::size_t>(bytes), "simulated:%d", device);
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!valid(device)) return failed(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  Streams& streams = Streams::get();
  std::vector<cudaStream_t> all;
  {
    const std::lock_guard lock(streams.mutex);
    for (const cudaStream_t stream : streams.all)
      if (stream->device == current) all.push_back(stream);
  }
  for (const cudaStream_t stream : all) stream->drain();
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = valid(device) && valid(peer) ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return valid(peer) ? cudaSuccess : failed(cudaErrorInvalidDevice);
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = nullptr;
  const std::size_t taken = taken_for(std::max<std::size_t>(bytes, 1));
  if (!millrace::simulated::take(current, taken)) return failed(cudaErrorMemoryAllocation);
  void* const data = mmap(nullptr, taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    millrace::simulated::give(current, taken);
    return failed(cudaErrorMemoryAllocation);
  }
  if (taken <= kMiB) std::memset(data, 0xcb, taken);  // nobody may count on zeros
  Memory& all = Memory::get();
  const std::lock_guard lock(all.mutex);
  all.blocks[data] = {bytes, taken, current};
  *memory = data;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  Memory::Block block;
  {
    Memory& all = Memory::get();
    const std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(memory);
    if (found == all.blocks.end()) return failed(cudaErrorInvalidValue);
    block = found->second;
    all.blocks.erase(found);
  }
  // Freeing waits for the device, as CUDA's does.
  const int before = std::exchange(current, block.device);
  cudaDeviceSynchronize();
  current = before;
  munmap(memory, block.taken);
  millrace::simulated::give(block.device, block.taken);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = std::aligned_alloc(4096, (std::max<std::size_t>(bytes, 1) + 4095) / 4096 * 4096);
  return *memory != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) {
  cudaDeviceSynchronize();
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** seen, void* memory, unsigned) {
  *seen = memory;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  *total = capacity();
  *free = *total - memory.used[current];
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                         std::size_t height, cudaMemcpyKind) {
  for (std::size_t row = 0; row < height; ++row)
    std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memset(memory, value, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (!valid(current)) return failed(cudaErrorNoDevice);
  *stream = new CUstream_st(current);
  Streams& streams = Streams::get();
  const std::lock_guard lock(streams.mutex);
  streams.all.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    Streams& streams = Streams::get();
    const std::lock_guard lock(streams.mutex);
    streams.all.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (!is_null(stream)) stream->drain();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return is_null(stream) || stream->idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const auto state = event->state;
  std::uint64_t number;
  {
    const std::lock_guard lock(state->mutex);
    number = state->asked;
  }
  return enqueue(stream, [state, number] { state->await(number); });
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(stream->mutex);
  stream->capture = std::make_unique<CUgraph_st>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(stream->mutex);
  *graph = stream->capture.release();
  return *graph != nullptr ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data) {
  return enqueue(stream, [=] { function(data); });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto state = event->state;
  std::uint64_t number;
  {
    const std::lock_guard lock(state->mutex);
    number = ++state->asked;
  }
  return enqueue(stream, [state, number] {
    {
      const std::lock_guard lock(state->mutex);
      state->reached = std::max(state->reached, number);
      state->when = Clock::now();
    }
    state->changed.notify_all();
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::uint64_t number;
  {
    const std::lock_guard lock(event->state->mutex);
    number = event->state->asked;
  }
  event->state->await(number);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(event->state->mutex);
  return event->state->reached >= event->state->asked ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const auto when = [](cudaEvent_t event) {
    const std::lock_guard lock(event->state->mutex);
    return event->state->when;
  };
  *milliseconds = std::chrono::duration<float, std::milli>(when(end) - when(begin)).count();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{std::make_shared<const std::vector<Work>>(graph->works)};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return enqueue(stream, [works = exec->works] {
    for (const Work& work : *works) work();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

// CUDA's runtime, as much of it as Millrace calls, made of the driver's functions: devices, memory, streams, events,
// graphs. Takes the place of NVIDIA's library, which is there for no compiler but Microsoft's on Windows. What the
// functions do and return is in CUDA's own documentation of them.
#include <cstddef>

#include "device/cuda_driver.h"

using namespace millrace::device;

namespace {

const CudaDriver& driver() { return *CudaDriver::get(); }

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

/// call() with the context of this thread's GPU.
template <typename Call>
cudaError_t within(const Call& call) {
  if (const cudaError_t error = enter_context(); error != cudaSuccess) return error;
  return told(call(driver()));
}

int attribute(int device, CUdevice_attribute which) {
  int value = 0;
  return driver().cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

CUDA_MEMCPY2D rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                   std::size_t height, cudaMemcpyKind kind) {
  CUDA_MEMCPY2D copy = {};
  const bool from_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost;
  const bool to_host = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost;
  copy.srcMemoryType = from_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  copy.dstMemoryType = to_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  if (kind == cudaMemcpyDefault) copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcHost = from;
  copy.srcDevice = address(from);
  copy.srcPitch = from_pitch;
  copy.dstHost = to;
  copy.dstDevice = address(to);
  copy.dstPitch = to_pitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Errors

const char* CUDARTAPI cudaGetErrorName(cudaError_t error) {
  if (error == cudaErrorInsufficientDriver) return "cudaErrorInsufficientDriver";
  const char* name = nullptr;
  const CudaDriver* const found = CudaDriver::get();
  const bool known = found != nullptr && found->cuGetErrorName(static_cast<CUresult>(error), &name) == CUDA_SUCCESS;
  return known && name != nullptr ? name : "unknown error";
}

const char* CUDARTAPI cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorInsufficientDriver) return "the NVIDIA driver is missing or too old";
  const char* text = nullptr;
  const CudaDriver* const found = CudaDriver::get();
  const bool known = found != nullptr && found->cuGetErrorString(static_cast<CUresult>(error), &text) == CUDA_SUCCESS;
  return known && text != nullptr ? text : "unknown error";
}

// ---------------------------------------------------------------------------------------------------------------------
// Devices

cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) {
  *version = 0;
  const CudaDriver* const found = CudaDriver::get();
  return found == nullptr ? cudaSuccess : told(found->cuDriverGetVersion(version));
}

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  *count = 0;
  if (const cudaError_t error = start_driver(); error != cudaSuccess) return error;
  return told(driver().cuDeviceGetCount(count));
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (const cudaError_t error = start_driver(); error != cudaSuccess) return error;
  return told(driver().cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(which), device));
}

/// Those that Millrace asks for; the others are 0.
cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const cudaError_t error = start_driver(); error != cudaSuccess) return error;
  *properties = {};
  if (const CUresult code = driver().cuDeviceGetName(properties->name, sizeof(properties->name), device);
      code != CUDA_SUCCESS)
    return told(code);
  if (const CUresult code = driver().cuDeviceTotalMem(&properties->totalGlobalMem, device); code != CUDA_SUCCESS)
    return told(code);
  properties->major = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  properties->minor = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  properties->multiProcessorCount = attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  properties->sharedMemPerBlockOptin =
      static_cast<std::size_t>(attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  properties->sharedMemPerMultiprocessor =
      static_cast<std::size_t>(attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
  properties->l2CacheSize = attribute(device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char* bus, int bytes, int device) {
  if (const cudaError_t error = start_driver(); error != cudaSuccess) return error;
  return told(driver().cuDeviceGetPCIBusId(bus, bytes, device));
}

cudaError_t CUDARTAPI cudaDeviceSynchronize() {
  return within([](const CudaDriver& d) { return d.cuCtxSynchronize(); });
}

cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int* possible, int device, int peer) {
  if (const cudaError_t error = start_driver(); error != cudaSuccess) return error;
  return told(driver().cuDeviceCanAccessPeer(possible, device, peer));
}

cudaError_t CUDARTAPI cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  CUcontext other = nullptr;
  if (const cudaError_t error = context_of(peer, other); error != cudaSuccess) return error;
  return within([&](const CudaDriver& d) { return d.cuCtxEnablePeerAccess(other, flags); });
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory

cudaError_t CUDARTAPI cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return within([&](const CudaDriver& d) { return d.cuMemGetInfo(free, total); });
}

cudaError_t CUDARTAPI cudaMalloc(void** memory, std::size_t bytes) {
  *memory = nullptr;
  return within([&](const CudaDriver& d) {
    CUdeviceptr made = 0;
    const CUresult code = bytes == 0 ? CUDA_SUCCESS : d.cuMemAlloc(&made, bytes);
    *memory = reinterpret_cast<void*>(made);
    return code;
  });
}

cudaError_t CUDARTAPI cudaFree(void* memory) {
  return within([&](const CudaDriver& d) { return memory == nullptr ? CUDA_SUCCESS : d.cuMemFree(address(memory)); });
}

cudaError_t CUDARTAPI cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  *memory = nullptr;
  return within([&](const CudaDriver& d) {
    CUdeviceptr made = 0;
    const CUresult code = bytes == 0 ? CUDA_SUCCESS : d.cuMemAllocAsync(&made, bytes, stream);
    *memory = reinterpret_cast<void*>(made);
    return code;
  });
}

cudaError_t CUDARTAPI cudaFreeAsync(void* memory, cudaStream_t stream) {
  return within([&](const CudaDriver& d) {
    return memory == nullptr ? CUDA_SUCCESS : d.cuMemFreeAsync(address(memory), stream);
  });
}

cudaError_t CUDARTAPI cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  return within(
      [&](const CudaDriver& d) { return d.cuMemHostAlloc(memory, bytes, flags | CU_MEMHOSTALLOC_DEVICEMAP); });
}

cudaError_t CUDARTAPI cudaMallocHost(void** memory, std::size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }

cudaError_t CUDARTAPI cudaFreeHost(void* memory) {
  return within([&](const CudaDriver& d) { return memory == nullptr ? CUDA_SUCCESS : d.cuMemFreeHost(memory); });
}

cudaError_t CUDARTAPI cudaHostRegister(void* memory, std::size_t bytes, unsigned flags) {
  return within(
      [&](const CudaDriver& d) { return d.cuMemHostRegister(memory, bytes, flags | CU_MEMHOSTREGISTER_DEVICEMAP); });
}

cudaError_t CUDARTAPI cudaHostUnregister(void* memory) {
  return within([&](const CudaDriver& d) { return d.cuMemHostUnregister(memory); });
}

cudaError_t CUDARTAPI cudaHostGetDevicePointer(void** seen, void* host, unsigned flags) {
  return within([&](const CudaDriver& d) {
    CUdeviceptr found = 0;
    const CUresult code = d.cuMemHostGetDevicePointer(&found, host, flags);
    *seen = reinterpret_cast<void*>(found);
    return code;
  });
}

cudaError_t CUDARTAPI cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return within([&](const CudaDriver& d) {
    if (bytes == 0) return CUDA_SUCCESS;
    switch (kind) {
      case cudaMemcpyHostToDevice:
        return d.cuMemcpyHtoD(address(to), from, bytes);
      case cudaMemcpyDeviceToHost:
        return d.cuMemcpyDtoH(to, address(from), bytes);
      case cudaMemcpyDeviceToDevice:
        return d.cuMemcpyDtoD(address(to), address(from), bytes);
      default:
        return d.cuMemcpy(address(to), address(from), bytes);
    }
  });
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  return within([&](const CudaDriver& d) {
    if (bytes == 0) return CUDA_SUCCESS;
    switch (kind) {
      case cudaMemcpyHostToDevice:
        return d.cuMemcpyHtoDAsync(address(to), from, bytes, stream);
      case cudaMemcpyDeviceToHost:
        return d.cuMemcpyDtoHAsync(to, address(from), bytes, stream);
      case cudaMemcpyDeviceToDevice:
        return d.cuMemcpyDtoDAsync(address(to), address(from), bytes, stream);
      default:
        return d.cuMemcpyAsync(address(to), address(from), bytes, stream);
    }
  });
}

cudaError_t CUDARTAPI cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                   std::size_t width, std::size_t height, cudaMemcpyKind kind) {
  return within([&](const CudaDriver& d) {
    const CUDA_MEMCPY2D copy = rows(to, to_pitch, from, from_pitch, width, height, kind);
    return width == 0 || height == 0 ? CUDA_SUCCESS : d.cuMemcpy2DUnaligned(&copy);
  });
}

cudaError_t CUDARTAPI cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                        std::size_t width, std::size_t height, cudaMemcpyKind kind,
                                        cudaStream_t stream) {
  return within([&](const CudaDriver& d) {
    const CUDA_MEMCPY2D copy = rows(to, to_pitch, from, from_pitch, width, height, kind);
    return width == 0 || height == 0 ? CUDA_SUCCESS : d.cuMemcpy2DAsync(&copy, stream);
  });
}

cudaError_t CUDARTAPI cudaMemset(void* memory, int value, std::size_t bytes) {
  return within([&](const CudaDriver& d) {
    return bytes == 0 ? CUDA_SUCCESS : d.cuMemsetD8(address(memory), static_cast<unsigned char>(value), bytes);
  });
}

cudaError_t CUDARTAPI cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return within([&](const CudaDriver& d) {
    return bytes == 0 ? CUDA_SUCCESS
                      : d.cuMemsetD8Async(address(memory), static_cast<unsigned char>(value), bytes, stream);
  });
}

// ---------------------------------------------------------------------------------------------------------------------
// Streams, events, graphs

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return within([&](const CudaDriver& d) { return d.cuStreamCreate(stream, flags); });
}

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) {
  return within([&](const CudaDriver& d) { return d.cuStreamDestroy(stream); });
}

cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t stream) {
  return within([&](const CudaDriver& d) { return d.cuStreamQuery(stream); });
}

cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
  return within([&](const CudaDriver& d) { return d.cuStreamSynchronize(stream); });
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return within([&](const CudaDriver& d) { return d.cuStreamWaitEvent(stream, event, flags); });
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return within([&](const CudaDriver& d) { return d.cuLaunchHostFunc(stream, function, data); });
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return within(
      [&](const CudaDriver& d) { return d.cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)); });
}

cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return within([&](const CudaDriver& d) { return d.cuStreamEndCapture(stream, graph); });
}

cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return within([&](const CudaDriver& d) {
    CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult code = d.cuStreamIsCapturing(stream, &found);
    *status = static_cast<cudaStreamCaptureStatus>(found);
    return code;
  });
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return within([&](const CudaDriver& d) { return d.cuEventCreate(event, flags); });
}

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
  return within([&](const CudaDriver& d) { return d.cuEventDestroy(event); });
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) {
  return within([&](const CudaDriver& d) { return d.cuEventQuery(event); });
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return within([&](const CudaDriver& d) { return d.cuEventRecord(event, stream); });
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) {
  return within([&](const CudaDriver& d) { return d.cuEventSynchronize(event); });
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return within([&](const CudaDriver& d) { return d.cuEventElapsedTime(milliseconds, begin, end); });
}

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
  return within([&](const CudaDriver& d) { return d.cuGraphInstantiateWithFlags(made, graph, flags); });
}

cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) {
  return within([&](const CudaDriver& d) { return d.cuGraphDestroy(graph); });
}

cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return within([&](const CudaDriver& d) { return d.cuGraphLaunch(graph, stream); });
}

cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return within([&](const CudaDriver& d) { return d.cuGraphExecDestroy(graph); });
}

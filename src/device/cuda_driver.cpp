#include "device/cuda_driver.h"

#include <cstdlib>
#include <string_view>

#include "base/mutex.h"
#include "base/os/library.h"

namespace millrace::device {
namespace {

// Numbers of errors, attributes and ways are the same on both sides, and are handed on as they are.
static_assert(static_cast<int>(cudaErrorMemoryAllocation) == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(static_cast<int>(cudaErrorNoDevice) == CUDA_ERROR_NO_DEVICE);
static_assert(static_cast<int>(cudaErrorNoKernelImageForDevice) == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(static_cast<int>(cudaErrorPeerAccessAlreadyEnabled) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(static_cast<int>(cudaErrorNotReady) == CUDA_ERROR_NOT_READY);
static_assert(static_cast<int>(cudaDevAttrMultiProcessorCount) == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(static_cast<int>(cudaDevAttrMaxSharedMemoryPerBlockOptin) ==
              CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(static_cast<int>(cudaFuncAttributeMaxDynamicSharedMemorySize) ==
              CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(static_cast<int>(cudaFuncAttributePreferredSharedMemoryCarveout) ==
              CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
static_assert(static_cast<int>(cudaStreamCaptureModeThreadLocal) == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(static_cast<int>(cudaStreamNonBlocking) == CU_STREAM_NON_BLOCKING);
static_assert(static_cast<int>(cudaEventDisableTiming) == CU_EVENT_DISABLE_TIMING);
static_assert(static_cast<int>(cudaHostRegisterPortable) == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(static_cast<int>(cudaLaunchAttributeClusterDimension) == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);

constexpr int kMostDevices = 64;
#ifdef _WIN32
constexpr const char* kLibrary = "nvcuda.dll";
#else
constexpr const char* kLibrary = "libcuda.so.1";
#endif

thread_local int current = 0;
thread_local bool entered = false;  // the current device's context is this thread's
thread_local cudaError_t last = cudaSuccess;

/// Null where a function is missing.
const CudaDriver* load() {
  const auto library = os::Library::load(kLibrary);
  if (!library.ok()) return nullptr;
  static CudaDriver driver;
  bool complete = true;
#define MR_TEXT_OF(name) #name
#define MR_TEXT(name) MR_TEXT_OF(name)
#define MR_FIND(name) library->find(MR_TEXT(name), driver.name);
#define MR_ASK(name) complete = complete && driver.name != nullptr;
  MR_DRIVER_FUNCTIONS(MR_FIND)
  MR_OPTIONAL_DRIVER_FUNCTIONS(MR_FIND)
  MR_DRIVER_FUNCTIONS(MR_ASK)
#undef MR_ASK
#undef MR_FIND
#undef MR_TEXT
#undef MR_TEXT_OF
  return complete ? &driver : nullptr;
}

struct Contexts {
  Mutex mutex;
  CUcontext of[kMostDevices] MR_GUARDED_BY(mutex) = {};
};

bool wants_all_kernels() {
  const char* const wanted = std::getenv("CUDA_MODULE_LOADING");
  return wanted != nullptr && std::string_view(wanted) == "EAGER";
}

}  // namespace

const CudaDriver* CudaDriver::get() {
  static const CudaDriver* const driver = load();
  return driver;
}

int current_device() { return current; }

cudaError_t told(cudaError_t code) {
  if (code != cudaSuccess) last = code;
  return code;
}

cudaError_t start_driver() {
  static const cudaError_t started = [] {
    const CudaDriver* const driver = CudaDriver::get();
    int version = 0;
    if (driver == nullptr || driver->cuDriverGetVersion(&version) != CUDA_SUCCESS ||
        version / 1000 < CUDART_VERSION / 1000)
      return cudaErrorInsufficientDriver;
    return static_cast<cudaError_t>(driver->cuInit(0));
  }();
  return told(started);
}

cudaError_t context_of(int device, CUcontext& context) {
  static Contexts* const contexts = new Contexts;  // never deleted: threads may still end with it
  if (const cudaError_t error = start_driver(); error != cudaSuccess) return error;
  if (device < 0 || device >= kMostDevices) return told(cudaErrorInvalidDevice);
  const CudaDriver& driver = *CudaDriver::get();
  const MutexLock lock(contexts->mutex);
  CUcontext& known = contexts->of[device];
  if (known == nullptr) {
    CUdevice handle = 0;
    if (const CUresult code = driver.cuDeviceGet(&handle, device); code != CUDA_SUCCESS) return told(code);
    // Memory that is registered is seen by the GPU. Refused where somebody else has made the context, by his flags.
    (void)driver.cuDevicePrimaryCtxSetFlags(handle, CU_CTX_MAP_HOST);
    if (const CUresult code = driver.cuDevicePrimaryCtxRetain(&known, handle); code != CUDA_SUCCESS) {
      known = nullptr;
      return told(code);
    }
  }
  context = known;
  return cudaSuccess;
}

cudaError_t enter_context() {
  if (entered) return cudaSuccess;
  CUcontext context = nullptr;
  if (const cudaError_t error = context_of(current, context); error != cudaSuccess) return error;
  const CudaDriver& driver = *CudaDriver::get();
  if (const CUresult code = driver.cuCtxSetCurrent(context); code != CUDA_SUCCESS) return told(code);
  entered = true;
  static const bool all = wants_all_kernels();
  return all ? load_all_kernels(driver) : cudaSuccess;
}

}  // namespace millrace::device

using namespace millrace::device;

cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  if (const cudaError_t error = start_driver(); error != cudaSuccess) return error;
  *device = current;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
  if (device == current && entered) return cudaSuccess;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) return error;
  if (device < 0 || device >= count) return told(cudaErrorInvalidDevice);
  const int before = current;
  current = device;
  entered = false;
  const cudaError_t error = enter_context();
  if (error != cudaSuccess) current = before;
  return error;
}

cudaError_t CUDARTAPI cudaGetLastError() {
  const cudaError_t code = last;
  last = cudaSuccess;
  return code;
}

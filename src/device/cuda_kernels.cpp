// CUDA's runtime, as cuda_calls.cpp: kernels. A file compiled for the GPU registers, before main(), its image and, for
// each kernel, the function of the host that stands for it; nvcc's own objects do so, and those that
// cmake/host_kernels.py completes. An image is loaded when the first of its kernels is asked for.
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "device/cuda_driver.h"
#include "device/cuda_registration.h"

using namespace millrace;
using namespace millrace::device;

namespace {

/// What a file hands over (NVIDIA's fatbinary_section.h).
struct FatBinary {
  int magic, version;
  const void* image;
  const void* more;
};

struct Image {
  const void* data = nullptr;
  CUlibrary library = nullptr;  // null: not loaded yet
};

struct Kernel {
  Image* image = nullptr;
  const char* name = nullptr;
  std::atomic<CUkernel> found{nullptr};
};

/// Filled before main(), by one thread, and then only read but for what is found.
struct Registry {
  std::vector<std::unique_ptr<Image>> images;
  std::unordered_map<const void*, Kernel> kernels;
  Mutex loading;
};

Registry& registry() {
  static Registry* const made = new Registry;  // never deleted: threads may still launch
  return *made;
}

Image* add_image(const void* data) {
  registry().images.push_back(std::make_unique<Image>(Image{data}));
  return registry().images.back().get();
}

void add_kernel(Image* image, const void* function, const char* name) {
  Kernel& kernel = registry().kernels[function];
  kernel.image = image;
  kernel.name = name;
}

/// A load while a pass is recorded is no part of it.
class OutsideOfCapture {
 public:
  explicit OutsideOfCapture(const CudaDriver& driver) : driver_(driver) {
    (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~OutsideOfCapture() { (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  OutsideOfCapture(const OutsideOfCapture&) = delete;
  OutsideOfCapture& operator=(const OutsideOfCapture&) = delete;

 private:
  const CudaDriver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

CUresult load(const CudaDriver& driver, Image& image) {
  if (image.library != nullptr) return CUDA_SUCCESS;
  return driver.cuLibraryLoadData(&image.library, image.data, nullptr, nullptr, 0, nullptr, nullptr, 0);
}

thread_local cudaLaunchConfig_t pushed = {};  // of a call by <<<>>>

/// REQUIRES: enter_context() has succeeded.
cudaError_t kernel_of(const void* function, CUkernel& kernel) {
  Registry& all = registry();
  const auto known = all.kernels.find(function);
  if (known == all.kernels.end()) return told(cudaErrorInvalidDeviceFunction);
  Kernel& entry = known->second;
  kernel = entry.found.load(std::memory_order_acquire);
  if (kernel != nullptr) return cudaSuccess;
  const CudaDriver& driver = *CudaDriver::get();
  const MutexLock lock(all.loading);
  const OutsideOfCapture outside(driver);
  if (const CUresult code = load(driver, *entry.image); code != CUDA_SUCCESS) return told(code);
  if (const CUresult code = driver.cuLibraryGetKernel(&kernel, entry.image->library, entry.name); code != CUDA_SUCCESS)
    return told(code);
  entry.found.store(kernel, std::memory_order_release);
  return cudaSuccess;
}

/// The kernel, with the context of this thread's GPU.
cudaError_t enter_with_kernel(const void* function, CUkernel& kernel) {
  if (const cudaError_t error = enter_context(); error != cudaSuccess) return error;
  return kernel_of(function, kernel);
}

}  // namespace

KernelRegistration::KernelRegistration(const void* image, const HostKernel* kernels) {
  if (kernels->function == nullptr) return;
  Image* const made = add_image(image);
  for (; kernels->function != nullptr; ++kernels) add_kernel(made, kernels->function, kernels->name);
}

cudaError_t millrace::device::load_all_kernels(const CudaDriver& driver) {
  Registry& all = registry();
  const MutexLock lock(all.loading);
  for (const auto& image : all.images)
    if (const CUresult code = load(driver, *image); code != CUDA_SUCCESS) return told(code);
  return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------------------------
// What a file's object calls before main(). Images stay loaded until the process ends.

extern "C" {

void** CUDARTAPI __cudaRegisterFatBinary(void* binary) {
  return reinterpret_cast<void**>(add_image(static_cast<const FatBinary*>(binary)->image));
}

void CUDARTAPI __cudaRegisterFunction(void** image, const char* function, char*, const char* name, int, uint3*, uint3*,
                                      dim3*, dim3*, int*) {
  add_kernel(reinterpret_cast<Image*>(image), function, name);
}

void CUDARTAPI __cudaRegisterFatBinaryEnd(void**) {}
void CUDARTAPI __cudaUnregisterFatBinary(void**) {}
char CUDARTAPI __cudaInitModule(void**) { return 0; }
// Constants of kernels, which the host never touches.
void CUDARTAPI __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}

// What a call by <<<>>> becomes: its shape is put down, and the function that stands for the kernel picks it up.

unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes, CUstream_st* stream) {
  pushed.gridDim = grid;
  pushed.blockDim = block;
  pushed.dynamicSmemBytes = shared_bytes;
  pushed.stream = stream;
  return 0;
}

cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* stream) {
  *grid = pushed.gridDim;
  *block = pushed.blockDim;
  *shared_bytes = pushed.dynamicSmemBytes;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}

cudaError_t CUDARTAPI __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                       std::size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelExC(&config, function, arguments);
}

cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                         std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches and attributes

cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  CUkernel kernel = nullptr;
  if (const cudaError_t error = enter_with_kernel(function, kernel); error != cudaSuccess) return error;
  constexpr unsigned kMostAttributes = 4;
  CUlaunchAttribute attributes[kMostAttributes] = {};
  if (config->numAttrs > kMostAttributes) return told(cudaErrorInvalidValue);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& from = config->attrs[i];
    attributes[i].id = static_cast<CUlaunchAttributeID>(from.id);
    switch (from.id) {
      case cudaLaunchAttributeProgrammaticStreamSerialization:
        attributes[i].value.programmaticStreamSerializationAllowed = from.val.programmaticStreamSerializationAllowed;
        break;
      case cudaLaunchAttributeClusterDimension:
        attributes[i].value.clusterDim.x = from.val.clusterDim.x;
        attributes[i].value.clusterDim.y = from.val.clusterDim.y;
        attributes[i].value.clusterDim.z = from.val.clusterDim.z;
        break;
      default:
        return told(cudaErrorNotSupported);
    }
  }
  CUlaunchConfig launch = {};
  launch.gridDimX = config->gridDim.x;
  launch.gridDimY = config->gridDim.y;
  launch.gridDimZ = config->gridDim.z;
  launch.blockDimX = config->blockDim.x;
  launch.blockDimY = config->blockDim.y;
  launch.blockDimZ = config->blockDim.z;
  launch.sharedMemBytes = static_cast<unsigned>(config->dynamicSmemBytes);
  launch.hStream = config->stream;
  launch.attrs = attributes;
  launch.numAttrs = config->numAttrs;
  // A kernel stands for the function that it is in the current context.
  return told(CudaDriver::get()->cuLaunchKernelEx(&launch, reinterpret_cast<CUfunction>(kernel), arguments, nullptr));
}

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void* function, cudaFuncAttribute which, int value) {
  CUkernel kernel = nullptr;
  if (const cudaError_t error = enter_with_kernel(function, kernel); error != cudaSuccess) return error;
  return told(CudaDriver::get()->cuKernelSetAttribute(static_cast<CUfunction_attribute>(which), value, kernel,
                                                      current_device()));
}

/// Those that Millrace asks for; the others are 0.
cudaError_t CUDARTAPI cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  *attributes = {};
  CUkernel kernel = nullptr;
  if (const cudaError_t error = enter_with_kernel(function, kernel); error != cudaSuccess) return error;
  CUresult code = CUDA_SUCCESS;
  const auto ask = [&](CUfunction_attribute which) {
    int value = 0;
    if (code == CUDA_SUCCESS) code = CudaDriver::get()->cuKernelGetAttribute(&value, which, kernel, current_device());
    return value;
  };
  attributes->sharedSizeBytes = static_cast<std::size_t>(ask(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  attributes->localSizeBytes = static_cast<std::size_t>(ask(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
  attributes->maxThreadsPerBlock = ask(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  attributes->numRegs = ask(CU_FUNC_ATTRIBUTE_NUM_REGS);
  attributes->ptxVersion = ask(CU_FUNC_ATTRIBUTE_PTX_VERSION);
  attributes->binaryVersion = ask(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  return told(code);
}

}  // extern "C"

// NVIDIA's driver library (libcuda.so.1, nvcuda.dll), loaded at run time: its functions, and each GPU's primary
// context. For the files beside this one: those that stand in for CUDA's runtime library, which all others call, and
// those that do what the runtime has no functions for.
// Thread-safety: all from any thread.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace millrace::device {

/// The driver's functions that every device takes. cuda.h may rename one to a newer version of it, here too.
#define MR_DRIVER_FUNCTIONS(X)         \
  X(cuInit)                            \
  X(cuDriverGetVersion)                \
  X(cuGetErrorName)                    \
  X(cuGetErrorString)                  \
  X(cuDeviceGet)                       \
  X(cuDeviceGetCount)                  \
  X(cuDeviceGetName)                   \
  X(cuDeviceGetAttribute)              \
  X(cuDeviceGetPCIBusId)               \
  X(cuDeviceTotalMem)                  \
  X(cuDeviceCanAccessPeer)             \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuDevicePrimaryCtxSetFlags)        \
  X(cuCtxSetCurrent)                   \
  X(cuCtxSynchronize)                  \
  X(cuCtxEnablePeerAccess)             \
  X(cuMemGetInfo)                      \
  X(cuMemAddressReserve)               \
  X(cuMemAddressFree)                  \
  X(cuMemCreate)                       \
  X(cuMemRelease)                      \
  X(cuMemMap)                          \
  X(cuMemUnmap)                        \
  X(cuMemSetAccess)                    \
  X(cuMemGetAllocationGranularity)     \
  X(cuMemAlloc)                        \
  X(cuMemFree)                         \
  X(cuMemAllocAsync)                   \
  X(cuMemFreeAsync)                    \
  X(cuMemHostAlloc)                    \
  X(cuMemFreeHost)                     \
  X(cuMemHostRegister)                 \
  X(cuMemHostUnregister)               \
  X(cuMemHostGetDevicePointer)         \
  X(cuMemcpy)                          \
  X(cuMemcpyHtoD)                      \
  X(cuMemcpyDtoH)                      \
  X(cuMemcpyDtoD)                      \
  X(cuMemcpyAsync)                     \
  X(cuMemcpyHtoDAsync)                 \
  X(cuMemcpyDtoHAsync)                 \
  X(cuMemcpyDtoDAsync)                 \
  X(cuMemcpy2DUnaligned)               \
  X(cuMemcpy2DAsync)                   \
  X(cuMemsetD8)                        \
  X(cuMemsetD8Async)                   \
  X(cuStreamCreate)                    \
  X(cuStreamDestroy)                   \
  X(cuStreamQuery)                     \
  X(cuStreamSynchronize)               \
  X(cuStreamWaitEvent)                 \
  X(cuStreamBeginCapture)              \
  X(cuStreamEndCapture)                \
  X(cuStreamIsCapturing)               \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuLaunchHostFunc)                  \
  X(cuEventCreate)                     \
  X(cuEventDestroy)                    \
  X(cuEventQuery)                      \
  X(cuEventRecord)                     \
  X(cuEventSynchronize)                \
  X(cuEventElapsedTime)                \
  X(cuGraphInstantiateWithFlags)       \
  X(cuGraphDestroy)                    \
  X(cuGraphLaunch)                     \
  X(cuGraphExecDestroy)                \
  X(cuLibraryLoadData)                 \
  X(cuLibraryGetKernel)                \
  X(cuKernelGetAttribute)              \
  X(cuKernelSetAttribute)              \
  X(cuLaunchKernelEx)

/// Those that a driver may lack: of heaps of Direct3D, which Windows' has.
#define MR_OPTIONAL_DRIVER_FUNCTIONS(X) \
  X(cuDeviceGetLuid)                    \
  X(cuImportExternalMemory)             \
  X(cuExternalMemoryGetMappedBuffer)    \
  X(cuDestroyExternalMemory)

struct CudaDriver {
#define MR_FUNCTION(name) decltype(&::name) name = nullptr;
  MR_DRIVER_FUNCTIONS(MR_FUNCTION)
  MR_OPTIONAL_DRIVER_FUNCTIONS(MR_FUNCTION)
#undef MR_FUNCTION

  /// Null: there is no library, or an older one than CUDA 12's.
  static const CudaDriver* get();
};

/// The library is there, is new enough and has begun; no GPU is used yet.
/// Errors: cudaErrorInsufficientDriver (none, or too old), cudaErrorNoDevice and what else cuInit says.
cudaError_t start_driver();
/// start_driver(), and this thread's current GPU has its primary context current. Made once a GPU, never given back.
cudaError_t enter_context();
/// enter_context() of another GPU, which stays as it is for this thread.
cudaError_t context_of(int device, CUcontext& context);

/// This thread's current GPU.
int current_device();

/// Remembers an error for cudaGetLastError().
cudaError_t told(cudaError_t code);
/// The numbers are the same on both sides.
inline cudaError_t told(CUresult code) { return told(static_cast<cudaError_t>(code)); }

/// Kernels of all files, which are otherwise loaded file by file when the first one is asked for.
cudaError_t load_all_kernels(const CudaDriver& driver);

}  // namespace millrace::device

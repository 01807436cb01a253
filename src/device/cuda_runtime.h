// CUDA's side of device/device.h: its types and errors, for the kernels' launchers and for what else stands below that
// interface. Compiled only where there is CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "device/device.h"

namespace millrace::device {

/// Ok, or what failed, where: "cudaMemcpyAsync: out of memory".
Status cuda_status(cudaError_t code, const char* call);

#define MR_CUDA(call)                                                                                             \
  do {                                                                                                            \
    if (::millrace::Status mr_cuda_status = ::millrace::device::cuda_status((call), #call); !mr_cuda_status.ok()) \
      return mr_cuda_status;                                                                                      \
  } while (false)

inline cudaStream_t cuda_stream(StreamRef stream) { return static_cast<cudaStream_t>(stream.native); }
inline cudaEvent_t cuda_event(EventRef event) { return static_cast<cudaEvent_t>(event.native); }

}  // namespace millrace::device

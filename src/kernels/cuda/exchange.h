// How the GPU and the processor work on one product at once: the GPU hands out activations and takes in the rows that
// the processor computed, through page-locked memory and a flag each way, while both keep running. Nobody waits for the
// device as a whole.
//
// A flag holds the number of the last exchange that is done. Numbers grow by one and may wrap.
// Thread-safety and errors: as cuda_kernels.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::kernels::cuda {

/// Copies floats [count] to `to` and then sets *flag to `number`; both lie in page-locked memory, as the device sees
/// it. `from` and `to` on 16-byte edges. `arrived`: a word in device memory, 0 before and after.
cudaError_t hand_out(const float* from, std::int64_t count, float* to, std::uint32_t* flag, std::uint32_t number,
                     std::uint32_t* arrived, cudaStream_t stream);

/// Rows that the processor computed: to[r * to_stride + i] = (or +=) from[r * cols + i].
struct TakenIn {
  const float* from = nullptr;  // [rows, cols], dense, in page-locked memory as the device sees it
  float* to = nullptr;          // to_stride floats apart
  std::int64_t to_stride = 0;
  std::int32_t cols = 0;
};
struct TakeInCall {
  TakenIn parts[3];
  int count = 0;
  std::int32_t rows = 0;
  bool add = false;                     // to the residual stream
  const std::uint32_t* flag = nullptr;  // in page-locked memory, as the device sees it
  std::uint32_t number = 0;
  std::uint32_t* seen = nullptr;  // in device memory: the last number that was found in *flag; of one stream
};
/// Waits on the device until *flag has reached `number`, then copies. The processor MUST set the flag, come what may:
/// whatever follows on the stream waits with it.
cudaError_t take_in(const TakeInCall& call, cudaStream_t stream);

}  // namespace millrace::kernels::cuda

// The few calls of CUDA's runtime that the tests of its kernels make, over device/device.h: with
// kernels/cuda/launchers.h beside it, tests/cuda holds Vulkan's kernels to the very same bits. MILLRACE_TEST_DEVICE:
// which Vulkan device (0).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "device/device.h"

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorNotReady };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
using cudaStream_t = void*;

namespace millrace::test::as_cuda {

inline cudaError_t error_of(const Status& status) {
  if (status.ok()) return cudaSuccess;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return cudaErrorInvalidValue;
}
inline bool has_vulkan() {
  static const bool there = [] {
    const char* const said = std::getenv("MILLRACE_TEST_DEVICE");
    return error_of(device::use_gpu(said == nullptr ? 0 : std::atoi(said))) == cudaSuccess;
  }();
  return there;
}
inline std::map<void*, device::DeviceBuffer>& buffers() {
  static auto* const all = new std::map<void*, device::DeviceBuffer>;
  return *all;
}
inline cudaError_t allocate(void** at, std::size_t bytes) {
  if (!has_vulkan()) return cudaErrorInvalidValue;
  Expected<device::DeviceBuffer> buffer = device::DeviceBuffer::allocate(bytes);
  if (!buffer.ok()) return error_of(buffer.status());
  *at = buffer->data();
  buffers()[*at] = std::move(*buffer);
  return cudaSuccess;
}

}  // namespace millrace::test::as_cuda

inline const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "see above"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = millrace::test::as_cuda::has_vulkan() ? 1 : 0;
  return cudaSuccess;
}
template <typename T>
cudaError_t cudaMalloc(T** at, std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = millrace::test::as_cuda::allocate(&memory, bytes);
  *at = static_cast<T*>(memory);
  return error;
}
inline cudaError_t cudaFree(void* at) {
  millrace::test::as_cuda::buffers().erase(at);
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* at, int value, std::size_t bytes) {
  return millrace::test::as_cuda::error_of(
      millrace::device::fill_device(at, static_cast<std::uint8_t>(value), bytes, {}));
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return millrace::test::as_cuda::error_of(kind == cudaMemcpyHostToDevice
                                               ? millrace::device::write_device(to, from, bytes)
                                               : millrace::device::read_device(to, from, bytes));
}
inline cudaError_t cudaDeviceSynchronize() {
  return millrace::test::as_cuda::error_of(millrace::device::synchronise_gpu());
}

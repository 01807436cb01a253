// Heaps of Direct3D 12 as CUDA sees them (the driver's external memory).
// Compiled with the GPU part; never run on Windows.

#include <array>
#include <cstring>
#include <utility>

#include "device/cuda_driver.h"
#include "device/cuda_runtime.h"
#include "device/device.h"
#include "device/shared_heap.h"

namespace millrace::device {
namespace {

Status refused(CUresult code, const char* call) {
  if (code == CUDA_SUCCESS) return {};
  if (code == CUDA_ERROR_OUT_OF_MEMORY)
    return error(Code::out_of_budget, "{}: the GPU is out of memory; close what else uses it or ask for less", call);
  return error(
      code == CUDA_ERROR_NOT_SUPPORTED || code == CUDA_ERROR_INVALID_VALUE ? Code::unsupported : Code::io_error,
      "{}: error {} of the driver", call, static_cast<int>(code));
}

class CudaHeap final : public HeapImporter::Imported {
 public:
  CudaHeap(const CudaDriver& driver, CUexternalMemory memory) : driver_(driver), memory_(memory) {}
  // A mapped buffer is freed as other device memory is, before the heap that it lies on.
  ~CudaHeap() override {
    if (address_ != 0) cudaFree(reinterpret_cast<void*>(address_));
    driver_.cuDestroyExternalMemory(memory_);
  }
  Status map(std::uint64_t bytes) {
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer{};
    buffer.size = bytes;
    return refused(driver_.cuExternalMemoryGetMappedBuffer(&address_, memory_, &buffer),
                   "cuExternalMemoryGetMappedBuffer");
  }
  const std::byte* data() const override { return reinterpret_cast<const std::byte*>(address_); }

 private:
  const CudaDriver& driver_;
  const CUexternalMemory memory_;
  CUdeviceptr address_ = 0;
};

class CudaImporter final : public HeapImporter {
 public:
  CudaImporter(const CudaDriver& driver, int device, Stream stream)
      : driver_(driver), device_(device), stream_(std::move(stream)) {}

  Expected<AdapterLuid> adapter() const override {
    std::array<char, 8> luid{};
    unsigned nodes = 0;
    MR_RETURN_IF_ERROR(refused(driver_.cuDeviceGetLuid(luid.data(), &nodes, device_), "cuDeviceGetLuid"));
    AdapterLuid found;
    std::memcpy(&found.low, luid.data(), sizeof(found.low));
    std::memcpy(&found.high, luid.data() + sizeof(found.low), sizeof(found.high));
    return found;
  }

  Expected<std::unique_ptr<Imported>> import_heap(const SharedHeap& heap) override {
    const OnGpu on(device_);
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC description{};
    description.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_D3D12_HEAP;
    description.handle.win32.handle = heap.handle;
    description.size = heap.bytes;
    CUexternalMemory memory{};
    MR_RETURN_IF_ERROR(refused(driver_.cuImportExternalMemory(&memory, &description), "cuImportExternalMemory"));
    auto imported = std::make_unique<CudaHeap>(driver_, memory);
    MR_RETURN_IF_ERROR(imported->map(heap.bytes));
    return std::unique_ptr<Imported>(std::move(imported));
  }

  Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    const OnGpu on(device_);
    return copy_on_device(to, from, bytes, stream_);
  }
  Status wait() override { return stream_.synchronise(); }

 private:
  const CudaDriver& driver_;
  const int device_;
  const Stream stream_;
};

}  // namespace

Expected<std::unique_ptr<HeapImporter>> make_cuda_importer(int index) {
  MR_RETURN_IF_ERROR(use_gpu(index));
  const CudaDriver* const driver = CudaDriver::get();
  const auto has = [](const auto&... functions) { return ((functions != nullptr) && ...); };
  if (driver == nullptr || !has(driver->cuDeviceGetLuid, driver->cuImportExternalMemory,
                                driver->cuExternalMemoryGetMappedBuffer, driver->cuDestroyExternalMemory))
    return error(Code::unsupported, "the driver of GPU {} imports no memory of Direct3D; on Windows, a newer one does",
                 index);
  MR_ASSIGN_OR_RETURN(Stream stream, Stream::create());
  return std::unique_ptr<HeapImporter>(std::make_unique<CudaImporter>(*driver, index, std::move(stream)));
}

}  // namespace millrace::device

// Addresses that are backed on demand, by the driver's virtual memory management: a slot keeps its address while its
// memory comes and goes.

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "device/cuda_driver.h"
#include "device/cuda_runtime.h"
#include "device/range.h"

namespace millrace::device {
namespace {

Status driver_status(const CudaDriver& driver, CUresult code, const char* call) {
  if (code == CUDA_SUCCESS) return {};
  if (code == CUDA_ERROR_OUT_OF_MEMORY)
    return error(Code::out_of_budget, "{}: the GPU is out of memory; close what else uses it or ask for less", call);
  const char* name = nullptr;
  driver.cuGetErrorName(code, &name);
  return error(Code::io_error, "{}: {}", call, name != nullptr ? name : "an error without a name");
}

class DeviceRange final : public Range {
 public:
  DeviceRange(const CudaDriver& driver, const CUmemAllocationProp& kind, std::uint64_t granule)
      : driver_(driver), kind_(kind), granule_(granule) {}
  ~DeviceRange() override {
    if (base_ == 0) return;
    release(0, bytes());
    driver_.cuMemAddressFree(base_, bytes());
  }
  Status reserve(std::uint64_t bytes) {
    const std::size_t granules = std::max<std::uint64_t>(1, (bytes + granule_ - 1) / granule_);
    MR_RETURN_IF_ERROR(driver_status(driver_, driver_.cuMemAddressReserve(&base_, granules * granule_, 0, 0, 0),
                                     "cuMemAddressReserve"));
    memory_.resize(granules);
    return {};
  }

  std::byte* data() const override { return reinterpret_cast<std::byte*>(base_); }
  std::uint64_t bytes() const override { return memory_.size() * granule_; }
  std::uint64_t granule_bytes() const override { return granule_; }
  std::uint64_t backed_bytes() const override { return backed_ * granule_; }

  Status back(std::uint64_t offset, std::uint64_t bytes) override {
    if (bytes == 0) return {};
    for (std::size_t g = offset / granule_; g <= (offset + bytes - 1) / granule_; ++g)
      if (memory_[g] == 0) MR_RETURN_IF_ERROR(back_granule(g));
    return {};
  }

  void release(std::uint64_t offset, std::uint64_t bytes) override {
    for (std::size_t g = offset / granule_; g < (offset + bytes) / granule_; ++g) {
      if (memory_[g] == 0) continue;
      const Status unmapped = driver_status(driver_, driver_.cuMemUnmap(at(g), granule_), "cuMemUnmap");
      const Status released = driver_status(driver_, driver_.cuMemRelease(memory_[g]), "cuMemRelease");
      for (const Status& status : {unmapped, released})
        if (!status.ok()) log::warn("memory of the GPU is not given back: {}", status.message());
      memory_[g] = 0;
      --backed_;
    }
  }

 private:
  CUdeviceptr at(std::size_t granule) const { return base_ + granule * granule_; }

  Status back_granule(std::size_t g) {
    CUmemGenericAllocationHandle memory = 0;
    MR_RETURN_IF_ERROR(driver_status(driver_, driver_.cuMemCreate(&memory, granule_, &kind_, 0), "cuMemCreate"));
    Status status = driver_status(driver_, driver_.cuMemMap(at(g), granule_, 0, memory, 0), "cuMemMap");
    if (status.ok()) {
      CUmemAccessDesc access{};
      access.location = kind_.location;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      status = driver_status(driver_, driver_.cuMemSetAccess(at(g), granule_, &access, 1), "cuMemSetAccess");
      if (!status.ok()) driver_.cuMemUnmap(at(g), granule_);
    }
    if (!status.ok()) {
      driver_.cuMemRelease(memory);
      return status;
    }
    memory_[g] = memory;
    ++backed_;
    return {};
  }

  const CudaDriver& driver_;
  const CUmemAllocationProp kind_;
  const std::uint64_t granule_;
  CUdeviceptr base_ = 0;
  std::vector<CUmemGenericAllocationHandle> memory_;  // by granule; 0: none
  std::uint64_t backed_ = 0;                          // granules
};

}  // namespace

Expected<std::unique_ptr<Range>> reserve_device_range(std::uint64_t bytes) {
  int device = 0;
  MR_CUDA(cudaGetDevice(&device));
  MR_RETURN_IF_ERROR(use_gpu(device));  // the driver's calls need the context that the runtime makes
  const CudaDriver* const driver = CudaDriver::get();
  int able = 0;
  if (driver != nullptr)
    driver->cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
  if (able == 0)
    return error(Code::unsupported, "the driver of GPU {} has no virtual memory management; a newer driver has",
                 device);
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  kind.location.id = device;
  int direct = 0;
  if (driver->cuDeviceGetAttribute(&direct, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device) ==
      CUDA_SUCCESS)
    kind.allocFlags.gpuDirectRDMACapable = direct != 0 ? 1 : 0;
  std::size_t granule = 0;
  MR_RETURN_IF_ERROR(
      driver_status(*driver, driver->cuMemGetAllocationGranularity(&granule, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                    "cuMemGetAllocationGranularity"));
  auto range = std::make_unique<DeviceRange>(*driver, kind, granule);
  MR_RETURN_IF_ERROR(range->reserve(bytes));
  return std::unique_ptr<Range>(std::move(range));
}

}  // namespace millrace::device

// Memory of a GPU that Direct3D 12 has made and another driver uses (Windows): what brings file bytes into a shared
// heap (storage/win32/directstorage.h) knows the device that computes by this interface alone.
// device/cuda_shared_heap.cpp is CUDA's. It was compiled and never run: Wine 8 has no ID3D12Device::CreateSharedHandle,
// so tests use a double. Thread-safety: an importer belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace millrace::device {

/// What Windows tells graphics adapters apart by, on this machine until it restarts.
struct AdapterLuid {
  std::uint32_t low = 0;
  std::int32_t high = 0;
  bool operator==(const AdapterLuid&) const = default;
};

/// A heap that holds one buffer, which takes all of it.
struct SharedHeap {
  void* handle = nullptr;    // an NT handle that stands for the heap; its maker closes it
  void* resource = nullptr;  // the buffer, an ID3D12Resource: for doubles that have no use for the handle
  std::uint64_t bytes = 0;
};

class HeapImporter {
 public:
  virtual ~HeapImporter() = default;

  /// The adapter whose heaps it can import, and no other's. Errors: unsupported.
  virtual Expected<AdapterLuid> adapter() const = 0;

  /// A heap as the device sees it, for as long as the object lives.
  class Imported {
   public:
    virtual ~Imported() = default;
    virtual const std::byte* data() const = 0;  // an address of the device
  };
  /// Errors: unsupported (the driver does not take it), out_of_budget, io_error.
  virtual Expected<std::unique_ptr<Imported>> import_heap(const SharedHeap& heap) = 0;

  /// Puts a copy to the device's memory on the importer's own stream. Errors: io_error.
  virtual Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  /// Waits until all copies have ended. Errors: io_error.
  virtual Status wait() = 0;
};

/// CUDA's, for device `index`. Compiled only where there is a GPU part. Errors: unsupported.
Expected<std::unique_ptr<HeapImporter>> make_cuda_importer(int index);

}  // namespace millrace::device

// A ring of buffers on shared heaps of Direct3D 12, as DirectStorage fills them and as another driver imports them.
// Internal to storage/. Thread-safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/shared_heap.h"
#include "storage/win32/directstorage.h"
#include "storage/win32/directstorage_interface.h"

namespace millrace::storage {

class HeapRing {
 public:
  /// On the adapter that the importer names. Errors: unsupported (no Direct3D 12, no such adapter, no export of heaps),
  /// out_of_budget; those of the importer.
  static Expected<std::unique_ptr<HeapRing>> make(std::unique_ptr<device::HeapImporter> importer,
                                                  std::uint64_t slot_bytes, const DeviceRing& options);

  ID3D12Device* device() const { return device_.get(); }
  const std::string& adapter_name() const { return adapter_name_; }

  /// A buffer for the request numbered `user`, until give_back(); null: none is free.
  ID3D12Resource* take(std::size_t user);
  /// Copies the first bytes of that request's buffer to memory of the importer's device, and waits for it.
  Status copy_out(std::size_t user, std::byte* to, std::uint64_t bytes);
  void give_back(std::size_t user);

 private:
  static constexpr std::size_t kNobody = SIZE_MAX;
  struct Slot {
    // The buffer lies on the heap, and what was imported is the heap's: they go in the other order.
    dstorage::Reference<ID3D12Heap> heap;
    dstorage::Reference<ID3D12Resource> buffer;
    std::unique_ptr<device::HeapImporter::Imported> imported;
    std::size_t user = kNobody;
  };
  explicit HeapRing(std::unique_ptr<device::HeapImporter> importer) : importer_(std::move(importer)) {}
  Status open_device();
  Expected<Slot> make_slot(std::uint64_t bytes, bool export_handle) const;
  Slot* of(std::size_t user);

  const std::unique_ptr<device::HeapImporter> importer_;
  std::string adapter_name_;
  dstorage::Reference<ID3D12Device> device_;
  std::vector<Slot> slots_;
};

}  // namespace millrace::storage

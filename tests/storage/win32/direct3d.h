// Direct3D 12 for tests: a device where this machine has one, and an importer of heaps that is no driver. Wine 8
// exports no heap (CreateSharedHandle), so what CUDA would do with a handle is done here with the buffer itself.
#pragma once

#include <windows.h>
// After windows.h, whose types they use.
#include <d3d12.h>
#include <dxgi1_4.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/shared_heap.h"
#include "storage/win32/directstorage_interface.h"
#include "storage/win32/directstorage_library.h"

namespace millrace::storage {

/// The first adapter and its device. Errors: unsupported (headless: DXGI has no adapter without a display).
struct Direct3D {
  dstorage::Reference<ID3D12Device> device;
  device::AdapterLuid luid;

  static Expected<Direct3D> open() {
    const HMODULE dxgi = load_system_library(L"dxgi.dll"), d3d12 = load_system_library(L"d3d12.dll");
    if (dxgi == nullptr || d3d12 == nullptr) return error(Code::unsupported, "no Direct3D 12 here");
    const auto make_factory = reinterpret_cast<HRESULT(WINAPI*)(REFIID, void**)>(
        reinterpret_cast<void*>(GetProcAddress(dxgi, "CreateDXGIFactory1")));
    const auto make_device = reinterpret_cast<HRESULT(WINAPI*)(IUnknown*, D3D_FEATURE_LEVEL, REFIID, void**)>(
        reinterpret_cast<void*>(GetProcAddress(d3d12, "D3D12CreateDevice")));
    dstorage::Reference<IDXGIFactory1> factory;
    dstorage::Reference<IDXGIAdapter1> adapter;
    Direct3D found;
    if (FAILED(make_factory(__uuidof(IDXGIFactory1), factory.out())) ||
        factory->EnumAdapters1(0, reinterpret_cast<IDXGIAdapter1**>(adapter.out())) != S_OK)
      return error(Code::unsupported, "DXGI has no adapter: it needs a display (Xvfb) and a Vulkan driver (lavapipe)");
    DXGI_ADAPTER_DESC1 description{};
    adapter->GetDesc1(&description);
    found.luid = {.low = description.AdapterLuid.LowPart, .high = description.AdapterLuid.HighPart};
    if (FAILED(make_device(adapter.get(), D3D_FEATURE_LEVEL_11_0, __uuidof(ID3D12Device), found.device.out())))
      return error(Code::unsupported, "the adapter has no Direct3D 12");
    return found;
  }
};

/// "Device memory" is host memory; a copy to it is a read-back of the buffer on a queue of its own.
class DoubleImporter final : public device::HeapImporter {
 public:
  explicit DoubleImporter(device::AdapterLuid luid) : luid_(luid) {}
  bool fail_import = false, fail_copy = false;
  std::uint64_t imported = 0, copies = 0;  // so far

  Expected<device::AdapterLuid> adapter() const override { return luid_; }

  Expected<std::unique_ptr<Imported>> import_heap(const device::SharedHeap& heap) override {
    if (fail_import) return error(Code::unsupported, "the double imports nothing");
    ++imported;
    return std::unique_ptr<Imported>(new Heap(static_cast<ID3D12Resource*>(heap.resource), heap.bytes));
  }

  Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    if (fail_copy) return error(Code::io_error, "the double copies nothing");
    ++copies;
    return reinterpret_cast<const Heap*>(from)->read_back(to, bytes);
  }
  Status wait() override { return {}; }

 private:
  class Heap final : public Imported {
   public:
    Heap(ID3D12Resource* buffer, std::uint64_t bytes) : buffer_(buffer), bytes_(bytes) {}
    const std::byte* data() const override { return reinterpret_cast<const std::byte*>(this); }
    Status read_back(std::byte* to, std::uint64_t bytes) const {
      dstorage::Reference<ID3D12Device> device;
      dstorage::Reference<ID3D12Resource> back;
      dstorage::Reference<ID3D12CommandQueue> queue;
      dstorage::Reference<ID3D12CommandAllocator> allocator;
      dstorage::Reference<ID3D12GraphicsCommandList> list;
      dstorage::Reference<ID3D12Fence> fence;
      buffer_->GetDevice(__uuidof(ID3D12Device), device.out());
      D3D12_HEAP_PROPERTIES heap{};
      heap.Type = D3D12_HEAP_TYPE_READBACK;
      D3D12_RESOURCE_DESC description{};
      description.Dimension = D3D12_RESOURCE_DIMENSION_BUFFER;
      description.Width = bytes_;
      description.Height = description.DepthOrArraySize = description.MipLevels = 1;
      description.SampleDesc.Count = 1;
      description.Layout = D3D12_TEXTURE_LAYOUT_ROW_MAJOR;
      device->CreateCommittedResource(&heap, D3D12_HEAP_FLAG_NONE, &description, D3D12_RESOURCE_STATE_COPY_DEST,
                                      nullptr, __uuidof(ID3D12Resource), back.out());
      D3D12_COMMAND_QUEUE_DESC copies{};
      copies.Type = D3D12_COMMAND_LIST_TYPE_COPY;
      device->CreateCommandQueue(&copies, __uuidof(ID3D12CommandQueue), queue.out());
      device->CreateCommandAllocator(copies.Type, __uuidof(ID3D12CommandAllocator), allocator.out());
      device->CreateCommandList(0, copies.Type, allocator.get(), nullptr, __uuidof(ID3D12GraphicsCommandList),
                                list.out());
      device->CreateFence(0, D3D12_FENCE_FLAG_NONE, __uuidof(ID3D12Fence), fence.out());
      list->CopyBufferRegion(back.get(), 0, buffer_, 0, bytes);
      list->Close();
      ID3D12CommandList* const lists[] = {list.get()};
      queue->ExecuteCommandLists(1, lists);
      queue->Signal(fence.get(), 1);
      const HANDLE event = CreateEventW(nullptr, FALSE, FALSE, nullptr);
      fence->SetEventOnCompletion(1, event);
      constexpr DWORD kPatienceMs = 20'000;
      const bool copied = WaitForSingleObject(event, kPatienceMs) == WAIT_OBJECT_0;
      CloseHandle(event);
      void* mapped = nullptr;
      if (!copied || FAILED(back->Map(0, nullptr, &mapped))) return error(Code::io_error, "no read-back");
      std::memcpy(to, mapped, bytes);
      back->Unmap(0, nullptr);
      return {};
    }

   private:
    ID3D12Resource* const buffer_;
    const std::uint64_t bytes_;
  };
  const device::AdapterLuid luid_;
};

}  // namespace millrace::storage

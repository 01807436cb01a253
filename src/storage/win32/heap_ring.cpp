#include "storage/win32/heap_ring.h"

#include <dxgi1_4.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "storage/win32/directstorage_library.h"

namespace millrace::storage {
namespace {

constexpr std::uint64_t kHeapGranule = D3D12_DEFAULT_RESOURCE_PLACEMENT_ALIGNMENT;
static_assert(kHeapGranule == 64 * kKiB);

template <typename Function>
Function* find(HMODULE library, const char* name) {
  if (library == nullptr) return nullptr;
  return reinterpret_cast<Function*>(reinterpret_cast<void*>(GetProcAddress(library, name)));
}

std::string utf8(const wchar_t* text) {
  const int bytes = WideCharToMultiByte(CP_UTF8, 0, text, -1, nullptr, 0, nullptr, nullptr);
  std::string words(static_cast<std::size_t>(std::max(bytes, 1)), '\0');
  WideCharToMultiByte(CP_UTF8, 0, text, -1, words.data(), bytes, nullptr, nullptr);
  words.pop_back();  // the end's zero
  return words;
}

/// A handle of a shared object that closes itself.
struct SharedHandle {
  HANDLE handle = nullptr;
  SharedHandle() = default;
  SharedHandle(const SharedHandle&) = delete;
  SharedHandle& operator=(const SharedHandle&) = delete;
  ~SharedHandle() {
    if (handle != nullptr) CloseHandle(handle);
  }
};

}  // namespace

Expected<std::unique_ptr<HeapRing>> HeapRing::make(std::unique_ptr<device::HeapImporter> importer,
                                                   std::uint64_t slot_bytes, const DeviceRing& options) {
  std::unique_ptr<HeapRing> ring(new HeapRing(std::move(importer)));
  MR_RETURN_IF_ERROR(ring->open_device());
  for (int i = 0; i < std::max(options.slots, 1); ++i) {
    MR_ASSIGN_OR_RETURN(Slot slot, ring->make_slot(round_up(slot_bytes, kHeapGranule), options.export_handles));
    ring->slots_.push_back(std::move(slot));
  }
  return ring;
}

Status HeapRing::open_device() {
  MR_ASSIGN_OR_RETURN(const device::AdapterLuid wanted, importer_->adapter());
  auto* const make_factory =
      find<HRESULT WINAPI(REFIID, void**)>(load_system_library(L"dxgi.dll"), "CreateDXGIFactory1");
  auto* const make_device = find<HRESULT WINAPI(IUnknown*, D3D_FEATURE_LEVEL, REFIID, void**)>(
      load_system_library(L"d3d12.dll"), "D3D12CreateDevice");
  if (make_factory == nullptr || make_device == nullptr)
    return error(Code::unsupported, "this system has no Direct3D 12; Windows 10 and later have");
  dstorage::Reference<IDXGIFactory1> factory;
  if (const HRESULT result = make_factory(__uuidof(IDXGIFactory1), factory.out()); FAILED(result))
    return error(Code::unsupported, "Direct3D 12 finds no adapters: {}", result_words(result));
  // Feature level 11.0 is enough for copies; asking for more would refuse software adapters.
  std::string seen;
  for (UINT i = 0;; ++i) {
    dstorage::Reference<IDXGIAdapter1> adapter;
    if (factory->EnumAdapters1(i, reinterpret_cast<IDXGIAdapter1**>(adapter.out())) != S_OK) break;
    DXGI_ADAPTER_DESC1 description{};
    if (FAILED(adapter->GetDesc1(&description))) continue;
    if (!seen.empty()) seen += ", ";
    seen += utf8(description.Description);
    const device::AdapterLuid luid{.low = description.AdapterLuid.LowPart, .high = description.AdapterLuid.HighPart};
    if (luid != wanted) continue;
    adapter_name_ = utf8(description.Description);
    const HRESULT result = make_device(adapter.get(), D3D_FEATURE_LEVEL_11_0, __uuidof(ID3D12Device), device_.out());
    if (FAILED(result))
      return error(Code::unsupported, "{} has no Direct3D 12: {}", adapter_name_, result_words(result));
    return {};
  }
  return error(Code::unsupported, "no adapter of Direct3D is the device that computes (there are: {})",
               seen.empty() ? "none" : seen);
}

Expected<HeapRing::Slot> HeapRing::make_slot(std::uint64_t bytes, bool export_handle) const {
  const std::string what = fmt::format("a shared heap of {} on {}", format_bytes(bytes), adapter_name_);
  D3D12_HEAP_DESC heap{};
  heap.SizeInBytes = bytes;
  heap.Properties.Type = D3D12_HEAP_TYPE_DEFAULT;
  heap.Flags = D3D12_HEAP_FLAG_SHARED | D3D12_HEAP_FLAG_ALLOW_ONLY_BUFFERS;
  Slot slot;
  MR_RETURN_IF_ERROR(result_status(device_->CreateHeap(&heap, __uuidof(ID3D12Heap), slot.heap.out()), what));
  D3D12_RESOURCE_DESC buffer{};
  buffer.Dimension = D3D12_RESOURCE_DIMENSION_BUFFER;
  buffer.Width = bytes;
  buffer.Height = buffer.DepthOrArraySize = buffer.MipLevels = 1;
  buffer.SampleDesc.Count = 1;
  buffer.Layout = D3D12_TEXTURE_LAYOUT_ROW_MAJOR;
  MR_RETURN_IF_ERROR(
      result_status(device_->CreatePlacedResource(slot.heap.get(), 0, &buffer, D3D12_RESOURCE_STATE_COMMON, nullptr,
                                                  __uuidof(ID3D12Resource), slot.buffer.out()),
                    what));
  SharedHandle shared;
  if (export_handle) {
    const HRESULT result = device_->CreateSharedHandle(slot.heap.get(), nullptr, GENERIC_ALL, nullptr, &shared.handle);
    if (FAILED(result))
      return error(Code::unsupported, "{} cannot be handed to another driver: {}", what, result_words(result));
  }
  MR_ASSIGN_OR_RETURN(slot.imported,
                      importer_->import_heap({.handle = shared.handle, .resource = slot.buffer.get(), .bytes = bytes}));
  return slot;
}

HeapRing::Slot* HeapRing::of(std::size_t user) {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.user == user; });
  return found != slots_.end() ? &*found : nullptr;
}

ID3D12Resource* HeapRing::take(std::size_t user) {
  Slot* const slot = of(kNobody);
  if (slot == nullptr) return nullptr;
  slot->user = user;
  return slot->buffer.get();
}

Status HeapRing::copy_out(std::size_t user, std::byte* to, std::uint64_t bytes) {
  MR_RETURN_IF_ERROR(importer_->copy(to, of(user)->imported->data(), bytes));
  return importer_->wait();
}

void HeapRing::give_back(std::size_t user) {
  if (Slot* const slot = of(user); slot != nullptr) slot->user = kNobody;
}

}  // namespace millrace::storage

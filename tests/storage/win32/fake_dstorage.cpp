// A stand-in for dstorage.dll: what Microsoft documents of DirectStorage's interfaces, over ReadFile and a copy queue
// of Direct3D 12, with failures on demand (fake_dstorage.h). It ends the process where a caller breaks a rule that the
// library would answer with undefined behaviour.
//
// What it keeps to: configuration before the first factory; the staging buffer's size, which changes only while nothing
// is open, bounds requests; a queue's capacity, half of which submits itself and all of which makes callers wait;
// status entries with the first failure since the one before, in the queue's order; an error record with its event; a
// cancelled request is done and no failure.
#include "storage/win32/fake_dstorage.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "storage/win32/directstorage_interface.h"

namespace millrace::storage::dstorage {
namespace {

FakeDirectStorage fake;
bool factory_made = false;

[[noreturn]] void broken_rule(const char* what) {
  std::fprintf(stderr, "fake dstorage: %s\n", what);
  std::fflush(stderr);
  std::abort();
}

std::mutex staging_mutex;
std::uint32_t staging = kUsualStagingBytes;
std::uint32_t staging_size() {
  const std::lock_guard lock(staging_mutex);
  return staging;
}

template <typename Interface>
class Counted : public Interface {
 public:
  virtual ~Counted() = default;
  ULONG STDMETHODCALLTYPE AddRef() override { return ++references_; }
  ULONG STDMETHODCALLTYPE Release() override {
    const ULONG left = --references_;
    if (left == 0) delete this;
    return left;
  }

 protected:
  HRESULT answer(bool known, void** out) {
    *out = known ? static_cast<Interface*>(this) : nullptr;
    if (known) ++references_;
    return known ? S_OK : E_NOINTERFACE;
  }

 private:
  std::atomic<ULONG> references_{1};
};

class FakeFile final : public Counted<File> {
 public:
  explicit FakeFile(HANDLE handle) : handle_(handle) { ++fake.files; }
  ~FakeFile() override { Close(); }
  HRESULT STDMETHODCALLTYPE QueryInterface(REFIID id, void** out) override { return answer(id == kFileId, out); }
  void STDMETHODCALLTYPE Close() override {
    if (handle_ == nullptr) return;
    CloseHandle(handle_);
    handle_ = nullptr;
    --fake.files;
  }
  HRESULT STDMETHODCALLTYPE GetFileInformation(BY_HANDLE_FILE_INFORMATION* info) override {
    if (handle_ == nullptr) return kFileNotOpen;
    return GetFileInformationByHandle(handle_, info) != 0 ? S_OK : HRESULT_FROM_WIN32(GetLastError());
  }
  HRESULT read(std::uint64_t offset, std::uint32_t bytes, std::byte* to) const {
    if (handle_ == nullptr) return kFileNotOpen;
    LARGE_INTEGER size{};
    if (GetFileSizeEx(handle_, &size) == 0) return HRESULT_FROM_WIN32(GetLastError());
    const auto end = static_cast<std::uint64_t>(size.QuadPart);
    if (offset > end || bytes > end - offset) return kEndOfFile;
    OVERLAPPED place{};
    place.Offset = static_cast<DWORD>(offset);
    place.OffsetHigh = static_cast<DWORD>(offset >> 32);
    DWORD arrived = 0;
    if (ReadFile(handle_, to, bytes, &arrived, &place) == 0) return HRESULT_FROM_WIN32(GetLastError());
    return arrived == bytes ? S_OK : kEndOfFile;
  }

 private:
  HANDLE handle_;
};

class FakeStatusArray final : public Counted<StatusArray> {
 public:
  explicit FakeStatusArray(UINT32 capacity) : entries_(capacity) {}
  HRESULT STDMETHODCALLTYPE QueryInterface(REFIID id, void** out) override { return answer(id == kStatusArrayId, out); }
  bool STDMETHODCALLTYPE IsComplete(UINT32 index) override { return at(index) != E_PENDING; }
  HRESULT STDMETHODCALLTYPE GetHResult(UINT32 index) override { return at(index); }
  void begin(UINT32 index) {
    // The documentation: an entry is enqueued again only when it is complete.
    if (at(index).exchange(E_PENDING) == E_PENDING)
      broken_rule("a status entry was enqueued again before it was complete");
  }
  void end(UINT32 index, HRESULT result) { at(index) = result; }

 private:
  std::atomic<HRESULT>& at(UINT32 index) {
    if (index >= entries_.size()) broken_rule("a status entry beyond the array's end");
    return entries_[index];
  }
  std::vector<std::atomic<HRESULT>> entries_;
};

/// Copies bytes into a buffer of a device, as the library does from its staging buffer.
class Uploader {
 public:
  HRESULT copy(ID3D12Device* device, const std::vector<std::byte>& bytes, const BufferDestination& to) {
    if (const HRESULT result = open(device, bytes.size()); FAILED(result)) return result;
    void* mapped = nullptr;
    upload_->Map(0, nullptr, &mapped);
    std::memcpy(mapped, bytes.data(), bytes.size());
    upload_->Unmap(0, nullptr);
    allocator_->Reset();
    list_->Reset(allocator_.get(), nullptr);
    list_->CopyBufferRegion(to.resource, to.offset, upload_.get(), 0, bytes.size());
    list_->Close();
    ID3D12CommandList* const lists[] = {list_.get()};
    queue_->ExecuteCommandLists(1, lists);
    queue_->Signal(fence_.get(), ++value_);
    const HANDLE event = CreateEventW(nullptr, FALSE, FALSE, nullptr);
    fence_->SetEventOnCompletion(value_, event);
    WaitForSingleObject(event, INFINITE);
    CloseHandle(event);
    return device->GetDeviceRemovedReason();
  }

 private:
  HRESULT open(ID3D12Device* device, std::uint64_t bytes) {
    if (!queue_) {
      D3D12_COMMAND_QUEUE_DESC copies{};
      copies.Type = D3D12_COMMAND_LIST_TYPE_COPY;
      if (FAILED(device->CreateCommandQueue(&copies, __uuidof(ID3D12CommandQueue), queue_.out())) ||
          FAILED(device->CreateCommandAllocator(copies.Type, __uuidof(ID3D12CommandAllocator), allocator_.out())) ||
          FAILED(device->CreateCommandList(0, copies.Type, allocator_.get(), nullptr,
                                           __uuidof(ID3D12GraphicsCommandList), list_.out())) ||
          FAILED(device->CreateFence(0, D3D12_FENCE_FLAG_NONE, __uuidof(ID3D12Fence), fence_.out())))
        return E_FAIL;
      list_->Close();
    }
    if (bytes <= room_) return S_OK;
    upload_ = {};
    D3D12_HEAP_PROPERTIES heap{};
    heap.Type = D3D12_HEAP_TYPE_UPLOAD;
    D3D12_RESOURCE_DESC buffer{};
    buffer.Dimension = D3D12_RESOURCE_DIMENSION_BUFFER;
    buffer.Width = bytes;
    buffer.Height = buffer.DepthOrArraySize = buffer.MipLevels = 1;
    buffer.SampleDesc.Count = 1;
    buffer.Layout = D3D12_TEXTURE_LAYOUT_ROW_MAJOR;
    room_ = bytes;
    return device->CreateCommittedResource(&heap, D3D12_HEAP_FLAG_NONE, &buffer, D3D12_RESOURCE_STATE_GENERIC_READ,
                                           nullptr, __uuidof(ID3D12Resource), upload_.out());
  }
  Reference<ID3D12Resource> upload_;
  Reference<ID3D12CommandQueue> queue_;
  Reference<ID3D12CommandAllocator> allocator_;
  Reference<ID3D12GraphicsCommandList> list_;
  Reference<ID3D12Fence> fence_;
  std::uint64_t value_ = 0, room_ = 0;
};

struct StatusWrite {
  FakeStatusArray* array;
  UINT32 index;
};
struct FenceWrite {
  ID3D12Fence* fence;
  UINT64 value;
};
struct EventWrite {
  HANDLE event;
};
using Entry = std::variant<Request, StatusWrite, FenceWrite, EventWrite>;

/// A queue with the thread that carries out what is submitted, in order.
class FakeQueue final : public Counted<Queue1> {
 public:
  explicit FakeQueue(const QueueDescription& description)
      : description_(description), failed_(CreateEventW(nullptr, TRUE, FALSE, nullptr)) {
    ++fake.queues;
    if (description_.device != nullptr) description_.device->AddRef();
    thread_ = std::thread([this] { work(); });
  }
  ~FakeQueue() override {
    Close();
    CloseHandle(failed_);
    if (description_.device != nullptr) description_.device->Release();
  }
  HRESULT STDMETHODCALLTYPE QueryInterface(REFIID id, void** out) override {
    return answer(id == kQueueId || (id == kQueue1Id && !fake.old), out);
  }
  void STDMETHODCALLTYPE EnqueueRequest(const Request* request) override {
    ++fake.requests;
    fake.largest = std::max<std::int64_t>(fake.largest, request->source.bytes);
    enqueue(*request);
  }
  void STDMETHODCALLTYPE EnqueueStatus(StatusArray* array, UINT32 index) override {
    ++fake.statuses;
    auto* const entries = static_cast<FakeStatusArray*>(array);
    entries->begin(index);
    enqueue(StatusWrite{entries, index});
  }
  void STDMETHODCALLTYPE EnqueueSignal(ID3D12Fence* fence, UINT64 value) override { enqueue(FenceWrite{fence, value}); }
  void STDMETHODCALLTYPE EnqueueSetEvent(HANDLE event) override { enqueue(EventWrite{event}); }
  void STDMETHODCALLTYPE Submit() override {
    ++fake.submits;
    const std::lock_guard lock(mutex_);
    submitted_ = entries_.size();
    change_.notify_all();
  }
  void STDMETHODCALLTYPE CancelRequestsWithTag(UINT64 mask, UINT64 value) override {
    ++fake.cancels;
    const std::lock_guard lock(mutex_);
    // What was cancelled stays in its place, so that what follows it is written when it was to be.
    for (Entry& entry : entries_)
      if (auto* const request = std::get_if<Request>(&entry); request != nullptr && (request->tag & mask) == value)
        request->source.file = nullptr;
    change_.notify_all();
  }
  void STDMETHODCALLTYPE Close() override {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      closed_ = true;
      change_.notify_all();
    }
    thread_.join();
    --fake.queues;
  }
  HANDLE STDMETHODCALLTYPE GetErrorEvent() override { return failed_; }
  void STDMETHODCALLTYPE RetrieveErrorRecord(ErrorRecord* record) override {
    const std::lock_guard lock(mutex_);
    *record = record_;
    record_ = {};
    ResetEvent(failed_);
  }
  void STDMETHODCALLTYPE Query(QueueInfo* info) override {
    const std::lock_guard lock(mutex_);
    info->description = description_;
    info->empty_slots = static_cast<std::uint16_t>(description_.capacity - entries_.size());
    info->until_submit = static_cast<std::uint16_t>(
        description_.capacity / 2 - std::min<std::size_t>(entries_.size() - submitted_, description_.capacity / 2));
  }

 private:
  void enqueue(const Entry& entry) {
    std::unique_lock lock(mutex_);
    if (closed_) broken_rule("something was enqueued into a closed queue");
    change_.wait(lock, [&] { return entries_.size() < description_.capacity; });
    entries_.push_back(entry);
    if (entries_.size() - submitted_ >= description_.capacity / 2u) submitted_ = entries_.size();
    change_.notify_all();
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      change_.wait(lock, [&] { return closed_ || submitted_ > 0; });
      if (closed_) return;
      Entry entry = entries_.front();
      if (std::holds_alternative<Request>(entry)) {
        // A held one looks at the switch again and again, for it is set from outside.
        while (fake.hold && !closed_ && std::get<Request>(entries_.front()).source.file != nullptr)
          change_.wait_for(lock, std::chrono::milliseconds(2));
        entry = entries_.front();
      }
      lock.unlock();
      const HRESULT result = carry_out(entry);
      lock.lock();
      if (FAILED(result)) note(std::get<Request>(entry), result);
      entries_.pop_front();
      --submitted_;
      change_.notify_all();
    }
  }

  HRESULT carry_out(const Entry& entry) {
    if (const auto* const request = std::get_if<Request>(&entry); request != nullptr) return read(*request);
    if (const auto* const status = std::get_if<StatusWrite>(&entry); status != nullptr) {
      status->array->end(status->index, since_status_);
      since_status_ = S_OK;
    } else if (const auto* const fence = std::get_if<FenceWrite>(&entry); fence != nullptr) {
      fence->fence->Signal(fence->value);
    } else {
      SetEvent(std::get<EventWrite>(entry).event);
    }
    return S_OK;
  }

  HRESULT read(const Request& request) {
    if (request.source.file == nullptr) {
      ++fake.cancelled;
      return S_OK;
    }
    if (fake.fail_after >= 0 && fake.fail_after-- == 0) {
      if (--fake.fail_count > 0) fake.fail_after = 0;
      return fake.fail_with;
    }
    const std::uint64_t source = request.options.kinds & 1, destination = request.options.kinds >> 1 & 127;
    for (const std::uint8_t zero : request.options.zero)
      if (zero != 0) return kReservedFields;
    if (request.options.kinds >> 8 != 0) return kReservedFields;
    if (source != kSourceFile || description_.source != kSourceFile) return kInvalidSourceType;
    if (request.source.bytes > staging_size()) return kRequestTooLarge;
    if (request.uncompressed_bytes != 0 && request.uncompressed_bytes != request.source.bytes)
      return kInvalidDestinationSize;
    const std::uint32_t room =
        destination == kToMemory ? request.destination.memory.bytes : request.destination.buffer.bytes;
    if (room != request.source.bytes) return kInvalidDestinationSize;
    const auto* const file = static_cast<FakeFile*>(request.source.file);
    if (destination == kToMemory)
      return file->read(request.source.offset, request.source.bytes,
                        static_cast<std::byte*>(request.destination.memory.data));
    if (destination != kToBuffer || description_.device == nullptr) return kInvalidDestinationType;
    std::vector<std::byte> bytes(request.source.bytes);
    if (const HRESULT result = file->read(request.source.offset, request.source.bytes, bytes.data()); FAILED(result))
      return result;
    return uploader_.copy(description_.device, bytes, request.destination.buffer);
  }

  void note(const Request& request, HRESULT result) {
    if (SUCCEEDED(since_status_)) since_status_ = result;
    if (record_.failures++ == 0) {
      record_.result = result;
      record_.command = 0;
      record_.first.request.request = request;
    }
    SetEvent(failed_);
  }

  const QueueDescription description_;
  const HANDLE failed_;
  std::mutex mutex_;
  std::condition_variable change_;
  std::deque<Entry> entries_;  // the first `submitted_` of which may be carried out
  std::size_t submitted_ = 0;
  bool closed_ = false;
  ErrorRecord record_{};
  HRESULT since_status_ = S_OK;  // the thread's own
  Uploader uploader_;
  std::thread thread_;
};

class FakeFactory final : public Counted<Factory> {
 public:
  HRESULT STDMETHODCALLTYPE QueryInterface(REFIID id, void** out) override { return answer(id == kFactoryId, out); }
  HRESULT STDMETHODCALLTYPE CreateQueue(const QueueDescription* description, REFIID, void** queue) override {
    if (description->capacity < kLeastCapacity || description->capacity > kMostCapacity) return kInvalidCapacity;
    if (description->priority < -1 || description->priority > 2) return kInvalidPriority;
    *queue = static_cast<Queue*>(new FakeQueue(*description));
    return S_OK;
  }
  HRESULT STDMETHODCALLTYPE OpenFile(const wchar_t* path, REFIID, void** file) override {
    const HANDLE handle = CreateFileW(path, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                                      nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
    if (handle == INVALID_HANDLE_VALUE) return HRESULT_FROM_WIN32(GetLastError());
    *file = static_cast<File*>(new FakeFile(handle));
    return S_OK;
  }
  HRESULT STDMETHODCALLTYPE CreateStatusArray(UINT32 capacity, const char*, REFIID, void** array) override {
    *array = static_cast<StatusArray*>(new FakeStatusArray(capacity));
    return S_OK;
  }
  void STDMETHODCALLTYPE SetDebugFlags(UINT32) override {}
  HRESULT STDMETHODCALLTYPE SetStagingBufferSize(UINT32 bytes) override {
    if (fake.queues > 0 || fake.files > 0) return kStagingLocked;
    constexpr std::uint32_t kLeast = 1u << 20;
    if (bytes != 0 && bytes < kLeast) return kInvalidStagingSize;
    const std::lock_guard lock(staging_mutex);
    staging = bytes != 0 ? bytes : kUsualStagingBytes;
    fake.staging_bytes = staging;
    return S_OK;
  }
};

}  // namespace
}  // namespace millrace::storage::dstorage

using namespace millrace::storage;  // NOLINT(google-build-using-namespace): what follows is the DLL's face

extern "C" {

__declspec(dllexport) FakeDirectStorage* fake_dstorage_state() { return &dstorage::fake; }

__declspec(dllexport) HRESULT WINAPI DStorageSetConfiguration1(const dstorage::Configuration1* configuration) {
  if (dstorage::factory_made) {
    ++dstorage::fake.configured_too_late;
    return dstorage::fake.queues > 0 || dstorage::fake.files > 0 ? dstorage::kStagingLocked : S_OK;
  }
  ++dstorage::fake.configured;
  dstorage::fake.no_telemetry = configuration->disable_telemetry;
  return S_OK;
}

__declspec(dllexport) HRESULT WINAPI DStorageGetFactory(REFIID id, void** out) {
  static dstorage::FakeFactory factory;
  // Without the other DLL the library has nothing to work with.
  if (GetModuleHandleW(L"dstoragecore.dll") == nullptr) return E_NOTIMPL;
  if (FAILED(dstorage::fake.factory_result.load())) return dstorage::fake.factory_result;
  dstorage::factory_made = true;
  return factory.QueryInterface(id, out);
}

}  // extern "C"

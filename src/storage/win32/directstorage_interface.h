// DirectStorage's binary interface in our own words: its names, orders, numbers and sizes are facts of the published
// API (Microsoft's DirectStorage API reference). Internal to storage/; directstorage.h is the interface.
#pragma once

#include <windows.h>
// After windows.h, whose types it uses.
#include <d3d12.h>

#include <cstddef>
#include <cstdint>

namespace millrace::storage::dstorage {

constexpr GUID kFactoryId = {0x6924ea0c, 0xc3cd, 0x4826, {0xb1, 0x0a, 0xf6, 0x4f, 0x4e, 0xd9, 0x27, 0xc1}};
constexpr GUID kFileId = {0x5de95e7b, 0x955a, 0x4868, {0xa7, 0x3c, 0x24, 0x3b, 0x29, 0xf4, 0xb8, 0xda}};
constexpr GUID kStatusArrayId = {0x82397587, 0x7cd5, 0x453b, {0xa0, 0x2e, 0x31, 0x37, 0x9b, 0xd6, 0x46, 0x56}};
constexpr GUID kQueueId = {0xcfdbd83f, 0x9e06, 0x4fda, {0x8e, 0xa5, 0x69, 0x04, 0x21, 0x37, 0xf4, 0x9b}};
constexpr GUID kQueue1Id = {0xdd2f482c, 0x5eff, 0x41e8, {0x9c, 0x9e, 0xd2, 0x37, 0x4b, 0x27, 0x81, 0x28}};

constexpr std::uint64_t kSourceFile = 0, kSourceMemory = 1;
constexpr std::uint64_t kToMemory = 0, kToBuffer = 1;
constexpr std::uint16_t kLeastCapacity = 0x80, kMostCapacity = 0x2000;
constexpr std::uint32_t kUsualStagingBytes = 32u << 20;  // until SetStagingBufferSize
constexpr std::int32_t kNoDecompressionThreads = -1;

// Errors: facility 0x924.
constexpr HRESULT failure(std::uint32_t number) { return static_cast<HRESULT>(0x89240000u | number); }
constexpr HRESULT kInvalidCapacity = failure(0x03), kUnsupportedVolume = failure(0x05), kEndOfFile = failure(0x07),
                  kRequestTooLarge = failure(0x08), kAccessViolation = failure(0x09), kUnsupportedFile = failure(0x0a),
                  kFileNotOpen = failure(0x0b), kReservedFields = failure(0x0c),
                  kInvalidDestinationSize = failure(0x0f), kQueueClosed = failure(0x10), kTooManyQueues = failure(0x12),
                  kInvalidPriority = failure(0x13), kTooManyFiles = failure(0x14), kIndexBound = failure(0x15),
                  kIoTimeout = failure(0x16), kInvalidFileHandle = failure(0x17), kInvalidSourceType = failure(0x1b),
                  kSystemNotSupported = failure(0x1d), kStagingLocked = failure(0x1f),
                  kInvalidStagingSize = failure(0x20), kStagingTooSmall = failure(0x21),
                  kInvalidDestinationType = failure(0x40);
// Direct3D's, whose device is gone.
constexpr HRESULT kDeviceRemoved = static_cast<HRESULT>(0x887a0005u), kDeviceHung = static_cast<HRESULT>(0x887a0006u),
                  kDeviceReset = static_cast<HRESULT>(0x887a0007u);

struct File;

struct QueueDescription {
  std::uint64_t source;
  std::uint16_t capacity;
  std::int8_t priority;
  const char* name;
  ID3D12Device* device;  // null: a queue that fills memory alone
};
struct QueueInfo {
  QueueDescription description;
  std::uint16_t empty_slots, until_submit;
};
struct RequestOptions {
  std::uint8_t compression;
  std::uint8_t zero[7];
  std::uint64_t kinds;  // bit 0: source; bits 1 to 7: destination
};
struct FileSource {
  File* file;
  std::uint64_t offset;
  std::uint32_t bytes;
};
struct MemoryDestination {
  void* data;
  std::uint32_t bytes;
};
struct BufferDestination {
  ID3D12Resource* resource;
  std::uint64_t offset;
  std::uint32_t bytes;
};
union Destination {
  MemoryDestination memory;
  BufferDestination buffer;
  std::byte largest[40];  // that of textures, which we do not have
};
struct Request {
  RequestOptions options;
  FileSource source;
  Destination destination;
  std::uint32_t uncompressed_bytes;
  std::uint64_t tag;
  const char* name;
};
struct FailedRequest {
  wchar_t file[260];
  char name[64];
  Request request;
};
struct ErrorRecord {
  std::uint32_t failures;  // since it was asked for last
  HRESULT result;          // of the first of them
  std::int32_t command;    // 0: a request
  union {
    FailedRequest request;
    void* handle;
  } first;
};
struct Configuration1 {
  std::uint32_t submit_threads;
  std::int32_t decompression_threads;
  BOOL force_mapping_layer, disable_bypass_io, disable_telemetry, disable_metacommand, disable_gpu_decompression,
      force_file_buffering;
};
static_assert(sizeof(QueueDescription) == 32 && offsetof(QueueDescription, capacity) == 8 &&
              offsetof(QueueDescription, priority) == 10 && offsetof(QueueDescription, name) == 16 &&
              offsetof(QueueDescription, device) == 24);
static_assert(sizeof(RequestOptions) == 16 && sizeof(FileSource) == 24 && sizeof(Destination) == 40);
static_assert(sizeof(Request) == 104 && offsetof(Request, source) == 16 && offsetof(Request, destination) == 40 &&
              offsetof(Request, uncompressed_bytes) == 80 && offsetof(Request, tag) == 88 &&
              offsetof(Request, name) == 96);
static_assert(sizeof(FailedRequest) == 688 && offsetof(ErrorRecord, first) == 16 && sizeof(ErrorRecord) == 704);
static_assert(sizeof(Configuration1) == 32);

// Interfaces: the order of the methods is the order of the table. A derived one begins with those of its base.
struct File : IUnknown {
  virtual void STDMETHODCALLTYPE Close() = 0;
  virtual HRESULT STDMETHODCALLTYPE GetFileInformation(BY_HANDLE_FILE_INFORMATION* info) = 0;
};
struct StatusArray : IUnknown {
  virtual bool STDMETHODCALLTYPE IsComplete(UINT32 index) = 0;
  virtual HRESULT STDMETHODCALLTYPE GetHResult(UINT32 index) = 0;
};
struct Queue : IUnknown {
  virtual void STDMETHODCALLTYPE EnqueueRequest(const Request* request) = 0;
  virtual void STDMETHODCALLTYPE EnqueueStatus(StatusArray* array, UINT32 index) = 0;
  virtual void STDMETHODCALLTYPE EnqueueSignal(ID3D12Fence* fence, UINT64 value) = 0;
  virtual void STDMETHODCALLTYPE Submit() = 0;
  virtual void STDMETHODCALLTYPE CancelRequestsWithTag(UINT64 mask, UINT64 value) = 0;
  virtual void STDMETHODCALLTYPE Close() = 0;
  virtual HANDLE STDMETHODCALLTYPE GetErrorEvent() = 0;
  virtual void STDMETHODCALLTYPE RetrieveErrorRecord(ErrorRecord* record) = 0;
  virtual void STDMETHODCALLTYPE Query(QueueInfo* info) = 0;
};
struct Queue1 : Queue {
  virtual void STDMETHODCALLTYPE EnqueueSetEvent(HANDLE event) = 0;
};
struct Factory : IUnknown {
  virtual HRESULT STDMETHODCALLTYPE CreateQueue(const QueueDescription* description, REFIID id, void** queue) = 0;
  virtual HRESULT STDMETHODCALLTYPE OpenFile(const wchar_t* path, REFIID id, void** file) = 0;
  virtual HRESULT STDMETHODCALLTYPE CreateStatusArray(UINT32 capacity, const char* name, REFIID id, void** array) = 0;
  virtual void STDMETHODCALLTYPE SetDebugFlags(UINT32 flags) = 0;
  virtual HRESULT STDMETHODCALLTYPE SetStagingBufferSize(UINT32 bytes) = 0;
};

/// A reference that is counted. Move-only.
template <typename Interface>
class Reference {
 public:
  Reference() = default;
  explicit Reference(Interface* counted) : counted_(counted) {}
  Reference(Reference&& other) noexcept : counted_(other.counted_) { other.counted_ = nullptr; }
  Reference& operator=(Reference&& other) noexcept {
    Interface* const taken = other.counted_;
    other.counted_ = counted_;
    counted_ = taken;
    return *this;
  }
  ~Reference() {
    if (counted_ != nullptr) counted_->Release();
  }
  Interface* get() const { return counted_; }
  Interface* operator->() const { return counted_; }
  explicit operator bool() const { return counted_ != nullptr; }
  /// Where a call puts what it makes. REQUIRES: empty.
  void** out() { return reinterpret_cast<void**>(&counted_); }

 private:
  Interface* counted_ = nullptr;
};

}  // namespace millrace::storage::dstorage

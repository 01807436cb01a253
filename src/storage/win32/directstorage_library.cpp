#include "storage/win32/directstorage_library.h"

#include <map>
#include <memory>

#include "base/bytes.h"
#include "base/log.h"
#include "storage/win32/system.h"

namespace millrace::storage {
namespace {

using dstorage::Factory;

struct Meaning {
  HRESULT result;
  Code code;
  const char* words;
};
// internal: a bug in our own request.
constexpr Meaning kMeanings[] = {
    {dstorage::kInvalidCapacity, Code::internal, "no queue has that capacity"},
    {dstorage::kUnsupportedVolume, Code::unsupported, "it does not read this volume: put the file on a local disk"},
    {dstorage::kEndOfFile, Code::io_error, "the file ends before the request does: truncated? Get it again"},
    {dstorage::kRequestTooLarge, Code::internal, "the request is larger than the staging buffer"},
    {dstorage::kAccessViolation, Code::internal, "the destination is not accessible"},
    {dstorage::kUnsupportedFile, Code::unsupported,
     "it does not read this kind of file: compressed or encrypted by the file system?"},
    {dstorage::kFileNotOpen, Code::internal, "the file is not open"},
    {dstorage::kReservedFields, Code::internal, "a reserved field is not zero"},
    {dstorage::kInvalidDestinationSize, Code::internal, "the destination's size is not the request's"},
    {dstorage::kQueueClosed, Code::cancelled, "the queue is closed"},
    {dstorage::kTooManyQueues, Code::unsupported, "the process has too many queues"},
    {dstorage::kInvalidPriority, Code::internal, "no queue has that priority"},
    {dstorage::kTooManyFiles, Code::unsupported, "the process has too many files open"},
    {dstorage::kIndexBound, Code::internal, "the status array has no such entry"},
    {dstorage::kIoTimeout, Code::io_error, "the disk did not answer in time: check its cable and health"},
    {dstorage::kInvalidFileHandle, Code::internal, "the file's handle is not valid"},
    {dstorage::kInvalidSourceType, Code::internal, "the queue reads no such source"},
    {dstorage::kSystemNotSupported, Code::unsupported, "this system has no DirectStorage"},
    {dstorage::kStagingLocked, Code::unavailable, "the staging buffer keeps its size while a queue or a file is open"},
    {dstorage::kInvalidStagingSize, Code::invalid_argument, "no staging buffer has that size"},
    {dstorage::kStagingTooSmall, Code::internal, "the staging buffer is too small for the request"},
    {dstorage::kInvalidDestinationType, Code::internal, "the queue has no device, so it fills no buffer of one"},
    {dstorage::kDeviceRemoved, Code::io_error,
     "the GPU was lost (removed, or its driver stopped or was updated): start again"},
    {dstorage::kDeviceHung, Code::io_error, "the GPU was lost (it hung): start again"},
    {dstorage::kDeviceReset, Code::io_error, "the GPU was lost (its driver was reset): start again"},
    {E_NOTIMPL, Code::unsupported, "this version of it is too old, or a part of it is missing"},
    {E_OUTOFMEMORY, Code::out_of_budget, "no memory is left: close other programs or lower --ram"},
    {HRESULT_FROM_WIN32(ERROR_FILE_NOT_FOUND), Code::not_found, "no such file; check the path"},
    {HRESULT_FROM_WIN32(ERROR_PATH_NOT_FOUND), Code::not_found, "no such folder; check the path"},
    {HRESULT_FROM_WIN32(ERROR_ACCESS_DENIED), Code::io_error, "Windows denies access"},
};

const Meaning* meaning_of(HRESULT result) {
  for (const Meaning& meaning : kMeanings)
    if (meaning.result == result) return &meaning;
  return nullptr;
}

/// The error for a missing library, with the folders searched.
Status not_there(const char* name, const std::string& folder) {
  return error(Code::unsupported,
               "{} is neither {}; it is part of Microsoft's DirectStorage package, which is not "
               "shipped with Millrace",
               name, folder.empty() ? "beside the program nor in a system folder" : "in " + folder + " nor usable");
}

template <typename Function>
Function* find(HMODULE library, const char* name) {
  return reinterpret_cast<Function*>(reinterpret_cast<void*>(GetProcAddress(library, name)));
}

}  // namespace

HMODULE load_system_library(const wchar_t* name, const std::string& folder) {
  // Never by the default search order, which includes the current folder and PATH.
  if (folder.empty())
    return LoadLibraryExW(name, nullptr, LOAD_LIBRARY_SEARCH_APPLICATION_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32);
  return LoadLibraryExW((wide_path(folder) + L"\\" + name).c_str(), nullptr,
                        LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32);
}

std::string result_words(HRESULT result) {
  const auto number = static_cast<std::uint32_t>(result);
  if (const Meaning* const meaning = meaning_of(result); meaning != nullptr)
    return fmt::format("{} (0x{:08x})", meaning->words, number);
  return fmt::format("{} (0x{:08x})",
                     HRESULT_FACILITY(result) == FACILITY_WIN32
                         ? system_words(static_cast<std::uint32_t>(HRESULT_CODE(result)))
                         : std::string("an error without words"),
                     number);
}

Status result_status(HRESULT result, std::string_view what) {
  if (SUCCEEDED(result)) return {};
  const Meaning* const meaning = meaning_of(result);
  return error(meaning != nullptr ? meaning->code : Code::io_error, "{}: {}", what, result_words(result));
}

Expected<DirectStorageLibrary*> DirectStorageLibrary::load(const std::string& folder) {
  static Mutex mutex;
  static std::map<std::string, std::unique_ptr<DirectStorageLibrary>> loaded;
  const MutexLock lock(mutex);
  if (const auto known = loaded.find(folder); known != loaded.end()) return known->second.get();

  // Load the core first: the other library needs it, and would find it by the default search order.
  if (load_system_library(L"dstoragecore.dll", folder) == nullptr) return not_there("dstoragecore.dll", folder);
  const HMODULE module = load_system_library(L"dstorage.dll", folder);
  if (module == nullptr) return not_there("dstorage.dll", folder);
  auto* const configure = find<HRESULT WINAPI(const dstorage::Configuration1*)>(module, "DStorageSetConfiguration1");
  auto* const get_factory = find<HRESULT WINAPI(REFIID, void**)>(module, "DStorageGetFactory");
  if (configure == nullptr || get_factory == nullptr)
    return error(Code::unsupported, "dstorage.dll is older than version 1.2; take a newer one");

  dstorage::Configuration1 configuration{};
  configuration.disable_telemetry = TRUE;
  configuration.decompression_threads = dstorage::kNoDecompressionThreads;
  configuration.disable_gpu_decompression = TRUE;
  if (const HRESULT result = configure(&configuration); FAILED(result))
    log::warn("storage: DirectStorage keeps its own configuration: {}", result_words(result));
  std::unique_ptr<DirectStorageLibrary> library(new DirectStorageLibrary);
  if (const HRESULT result = get_factory(dstorage::kFactoryId, library->factory_.out()); FAILED(result))
    return error(Code::unsupported, "DirectStorage does not start: {}", result_words(result));
  return (loaded[folder] = std::move(library)).get();
}

std::uint32_t DirectStorageLibrary::staging_bytes() const {
  const MutexLock lock(mutex_);
  return staging_bytes_;
}

Status DirectStorageLibrary::enter(std::uint32_t staging_bytes) {
  const MutexLock lock(mutex_);
  if (staging_bytes != staging_bytes_) {
    const HRESULT result = users_ > 0 ? dstorage::kStagingLocked : factory_->SetStagingBufferSize(staging_bytes);
    if (SUCCEEDED(result)) {
      staging_bytes_ = staging_bytes;
    } else if (result == dstorage::kStagingLocked) {
      log::info("storage: DirectStorage's staging buffer stays at {}: {}", format_bytes(staging_bytes_),
                result_words(result));
    } else {
      return result_status(result, fmt::format("DirectStorage's staging buffer of {}", format_bytes(staging_bytes)));
    }
  }
  ++users_;
  return {};
}

void DirectStorageLibrary::leave() {
  const MutexLock lock(mutex_);
  --users_;
}

Expected<DirectStorageSession> DirectStorageSession::open(const std::string& folder, std::uint32_t staging_bytes) {
  MR_ASSIGN_OR_RETURN(DirectStorageLibrary* const library, DirectStorageLibrary::load(folder));
  MR_RETURN_IF_ERROR(library->enter(staging_bytes));
  DirectStorageSession session;
  session.library_ = library;
  return session;
}

}  // namespace millrace::storage

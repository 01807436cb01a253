// The DLLs of DirectStorage, loaded when they are first asked for; the staging buffer that all users share; and what
// the library's numbers mean. Internal to storage/. Thread-safety: all of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "storage/win32/directstorage_interface.h"

namespace millrace::storage {

/// A DLL by its name: from `folder` alone, or, where that is empty, from the program's folder and then the system's.
/// Null: it is not there. Never unloaded.
HMODULE load_system_library(const wchar_t* name, const std::string& folder = {});

/// What a result of DirectStorage or Direct3D means, with its number: "the file ends before the request does
/// (0x89240007)".
std::string result_words(HRESULT result);
/// "WHAT: words" with the code that the result stands for: unsupported where another way of reading may do.
Status result_status(HRESULT result, std::string_view what);

class DirectStorageLibrary {
 public:
  /// Once in a process for each folder. Configures it before its first factory: no telemetry, no threads that
  /// decompress. Errors: unsupported (not there, too old, or it starts not).
  static Expected<DirectStorageLibrary*> load(const std::string& folder);

  dstorage::Factory& factory() const { return *factory_.get(); }
  std::uint32_t staging_bytes() const;

  /// One user more: the buffer has the size that the first of them asks for, as long as there are any. Errors:
  /// invalid_argument (a size that the library does not take).
  Status enter(std::uint32_t staging_bytes);
  void leave();

  DirectStorageLibrary(const DirectStorageLibrary&) = delete;
  DirectStorageLibrary& operator=(const DirectStorageLibrary&) = delete;

 private:
  DirectStorageLibrary() = default;

  dstorage::Reference<dstorage::Factory> factory_;
  mutable Mutex mutex_;
  int users_ MR_GUARDED_BY(mutex_) = 0;
  std::uint32_t staging_bytes_ MR_GUARDED_BY(mutex_) = dstorage::kUsualStagingBytes;
};

/// One use of the library. Move-only. REQUIRES: its queues and files are closed before.
class DirectStorageSession {
 public:
  DirectStorageSession() = default;
  /// Errors: those of load() and enter().
  static Expected<DirectStorageSession> open(const std::string& folder, std::uint32_t staging_bytes);
  DirectStorageSession(DirectStorageSession&& other) noexcept : library_(std::exchange(other.library_, nullptr)) {}
  DirectStorageSession& operator=(DirectStorageSession&& other) noexcept {
    std::swap(library_, other.library_);
    return *this;
  }
  ~DirectStorageSession() {
    if (library_ != nullptr) library_->leave();
  }
  const DirectStorageLibrary* operator->() const { return library_; }

 private:
  DirectStorageLibrary* library_ = nullptr;
};

}  // namespace millrace::storage

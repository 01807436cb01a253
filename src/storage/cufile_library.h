// NVIDIA's libcufile, loaded on first use, so that the program also runs without it: declarations of the few calls and
// structures needed, the driver session, and the memory registered with it. Internal to storage/; cufile.h is the
// interface. Thread-safety: all of it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"

namespace millrace::storage {

// As the library lays them out, on x86-64 and arm64, since its version 1.0 (NVIDIA's cuFile API Reference Guide).
struct CuFileError {
  int code;       // 0, or CUfileOpError: 5001 and up
  int cuda_code;  // CUresult, where code is 5011
};
struct CuFileDescription {
  int type = 1;  // a Linux file descriptor
  union {
    int fd;
    void* other;
  } handle{};
  const void* file_system = nullptr;
};
static_assert(sizeof(CuFileDescription) == 24 && sizeof(CuFileError) == 8);
struct CuFileProperties {
  unsigned driver_major, driver_minor;  // of nvidia-fs, 0 without it
  std::size_t poll_kib, direct_kib;
  unsigned status_flags;   // one bit a kind of storage that nvidia-fs reads directly
  unsigned control_flags;  // bit 1: compatibility mode is allowed
  unsigned feature_flags;  // bit 4: PCI peer-to-peer DMA, without nvidia-fs
  unsigned cache_kib, buffer_kib, pinned_kib, batch_requests, batch_timeout_ms;
  unsigned char later[256];  // reserved for newer libraries
};
static_assert(offsetof(CuFileProperties, status_flags) == 24 && offsetof(CuFileProperties, later) == 56);

/// The meaning of a cuFile error number, or strerror's text for a system error.
std::string cufile_cause(int code);

/// The library, loaded once per name and process. Never unloaded: it has its own threads.
class CuFileLibrary {
 public:
  /// Errors: unsupported, with the reason: missing, or too old.
  static Expected<CuFileLibrary*> load(const std::string& name);

  // The driver's session: opened by the first open(), closed by the last close(). Opening needs a CUDA context.
  /// Errors: unsupported.
  Status open();
  void close();
  /// REQUIRES: open. nullopt: the library does not report it.
  std::optional<CuFileProperties> properties() const;

  /// REQUIRES: open. 0, or an error's number.
  int register_handle(int fd, void*& handle);
  void release_handle(void* handle) { handle_deregister_(handle); }

  /// The range stays registered until release_buffer(). Errors: io_error, internal (it overlaps another).
  Status register_buffer(std::span<std::byte> range);
  void release_buffer(std::byte* begin);

  /// Bytes that arrived, or -errno or minus an error's number of cuFile's.
  std::int64_t read(void* handle, std::byte* destination, std::uint64_t bytes, std::uint64_t offset) const;

  CuFileLibrary(const CuFileLibrary&) = delete;
  CuFileLibrary& operator=(const CuFileLibrary&) = delete;

 private:
  CuFileLibrary() = default;
  Status find_calls(void* library, const std::string& name);

  CuFileError (*driver_open_)() = nullptr;
  CuFileError (*driver_close_)() = nullptr;
  CuFileError (*driver_properties_)(CuFileProperties*) = nullptr;
  CuFileError (*handle_register_)(void**, CuFileDescription*) = nullptr;
  void (*handle_deregister_)(void*) = nullptr;
  CuFileError (*buffer_register_)(const void*, std::size_t, int) = nullptr;
  CuFileError (*buffer_deregister_)(const void*) = nullptr;
  ssize_t (*read_)(void*, void*, std::size_t, off_t, off_t) = nullptr;

  Mutex session_mutex_;
  int users_ MR_GUARDED_BY(session_mutex_) = 0;
  mutable Mutex buffers_mutex_;
  // Sizes by start address; ranges do not overlap.
  std::map<std::byte*, std::uint64_t> buffers_ MR_GUARDED_BY(buffers_mutex_);
};

/// A reference to the library's session. Move-only.
class CuFileSession {
 public:
  CuFileSession() = default;
  /// Errors: unsupported.
  static Expected<CuFileSession> open(const std::string& library);
  CuFileSession(CuFileSession&& other) noexcept : library_(std::exchange(other.library_, nullptr)) {}
  CuFileSession& operator=(CuFileSession&& other) noexcept {
    std::swap(library_, other.library_);
    return *this;
  }
  ~CuFileSession() {
    if (library_ != nullptr) library_->close();
  }
  CuFileLibrary* operator->() const { return library_; }
  CuFileLibrary* get() const { return library_; }

 private:
  CuFileLibrary* library_ = nullptr;
};

/// A file registered with cuFile. Move-only. REQUIRES: the session and the descriptor outlive it; its reads have ended
/// before it is destroyed.
class CuFileHandle {
 public:
  CuFileHandle() = default;
  CuFileHandle(CuFileLibrary* library, void* handle) : library_(library), handle_(handle) {}
  CuFileHandle(CuFileHandle&& other) noexcept
      : library_(other.library_), handle_(std::exchange(other.handle_, nullptr)) {}
  CuFileHandle& operator=(CuFileHandle&& other) noexcept {
    std::swap(library_, other.library_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~CuFileHandle() {
    if (handle_ != nullptr) library_->release_handle(handle_);
  }
  void* get() const { return handle_; }

 private:
  CuFileLibrary* library_ = nullptr;
  void* handle_ = nullptr;
};

}  // namespace millrace::storage

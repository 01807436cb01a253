// What the Win32 sources of this folder share: names in UTF-16, errors in words, and a file that one thread reads.
// Thread-safety: functions without shared state; an OverlappedFile belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"
#include "storage/file_set.h"

namespace millrace::storage {

/// UTF-8 to UTF-16, as a path of Win32 in full: with its drive and backslashes, and with the prefix that long paths
/// need.
std::wstring wide_path(const std::string& path);

/// "The system cannot find the file specified. (error 2)".
std::string system_words(std::uint32_t code);

// Numbers of Win32 and of errno overlap; those of Win32 are told as attempts' results from here on.
constexpr int kFirstWin32Code = 1 << 20;
/// What PoolBackend::attempt() returns for an error of a read: 0 behind the end of the file, -EAGAIN for what passes,
/// else minus (kFirstWin32Code + code).
std::int64_t failed_attempt(std::uint32_t code);
/// The words for a number that failed_attempt() made, or for one of errno's.
std::string attempt_cause(int code);

/// An event or another handle that closes itself. Move-only.
class ScopedEvent {
 public:
  ScopedEvent() = default;
  /// Errors: io_error.
  static Expected<ScopedEvent> make(bool resets_itself);
  ScopedEvent(ScopedEvent&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  ScopedEvent& operator=(ScopedEvent&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~ScopedEvent();
  void* get() const { return handle_; }
  void set() const;

 private:
  explicit ScopedEvent(void* handle) : handle_(handle) {}
  void* handle_ = nullptr;
};

/// A file as one thread reads it: a handle of its own, so that no read of another thread waits for the same file
/// object's lock, and the event of its reads.
class OverlappedFile {
 public:
  /// alignment: 1 reads through the cache, more reads past it. Errors: io_error, unsupported (the file system reads
  /// nothing past the cache).
  static Expected<OverlappedFile> open_again(SystemHandle file, const std::string& path, std::uint64_t alignment);
  /// Bytes that arrived, or what failed_attempt() makes of the error. Past the cache, an offset, a length or an address
  /// that is no multiple of the alignment is refused here (ERROR_INVALID_PARAMETER) and not left to the system, of
  /// which some take it. Memory is put behind the destination first (device/win32/backing.h).
  std::int64_t read(std::uint64_t offset, std::uint64_t bytes, std::byte* destination) const;

 private:
  OverlappedFile(ScopedHandle handle, ScopedEvent event, std::uint64_t alignment)
      : handle_(std::move(handle)), event_(std::move(event)), alignment_(alignment) {}
  ScopedHandle handle_;
  ScopedEvent event_;
  std::uint64_t alignment_;
};

}  // namespace millrace::storage

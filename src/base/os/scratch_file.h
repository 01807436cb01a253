// A file for measurements and tests that leaves nothing behind however the process ends: it has no name, or (Windows)
// is deleted with its last handle. Thread-safety: one thread writes; path() may be opened from any.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/os/handle.h"
#include "base/status.h"

namespace millrace::os {

/// Move-only; the file is deleted with the object.
class ScratchFile {
 public:
  /// An empty file on the disk of `folder`. Errors: those of file.h.
  static Expected<ScratchFile> make(const std::string& folder);
  ScratchFile(ScratchFile&& other) noexcept : handle_(std::exchange(other.handle_, kNoHandle)) {}
  ScratchFile& operator=(ScratchFile&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~ScratchFile();

  /// Appends all bytes. Errors: those of file.h.
  Status write(std::span<const std::byte> bytes) const;
  /// Writes the bytes to the disk, and drops them from the system's cache as far as possible.
  Status flush_to_disk() const;
  /// A path that opens the file again while this object lives.
  std::string path() const;

 private:
  explicit ScratchFile(Handle handle) : handle_(handle) {}

  Handle handle_;
};

}  // namespace millrace::os

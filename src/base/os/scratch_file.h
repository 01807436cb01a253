// A file for measurements and trials, which leaves nothing behind however the process ends: it has no name, or
// (Windows) one that goes with its last handle. Thread-safety: one thread writes; path() may be opened from any.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/os/handle.h"
#include "base/status.h"

namespace millrace::os {

/// Move-only; the file is gone with the object.
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
  /// The bytes written so far are on the disk, and the system's cache holds none of them as far as it can be told so.
  Status flush_to_disk() const;
  /// Opens the file once more, while this object lives.
  std::string path() const;

 private:
  explicit ScratchFile(Handle handle) : handle_(handle) {}

  Handle handle_;
};

}  // namespace millrace::os

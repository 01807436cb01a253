// The files that a backend reads. They are opened once, and their identities are kept, so that a change on disk is
// detected. Thread-safety: immutable after open(); all const methods may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "storage/storage.h"

namespace millrace::storage {

/// The system's handle of an open file: a descriptor, or a Win32 HANDLE. -1 is no file on both.
using SystemHandle = std::intptr_t;

/// An open file that closes itself. Move-only.
class ScopedHandle {
 public:
  ScopedHandle() = default;
  explicit ScopedHandle(SystemHandle handle) : handle_(handle) {}
  ScopedHandle(ScopedHandle&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  ScopedHandle& operator=(ScopedHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~ScopedHandle();
  SystemHandle get() const { return handle_; }
  bool open() const { return handle_ != -1; }

 private:
  SystemHandle handle_ = -1;
};

/// Identifies a file's content: if two identities differ, the bytes may differ.
struct FileIdentity {
  std::uint64_t bytes = 0;
  std::uint64_t volume = 0;               // the device, or the volume's serial number
  std::array<std::uint64_t, 2> number{};  // the inode, or the file's number of 128 bits
  std::int64_t modified_ns = 0;           // the last change of its bytes
  bool operator==(const FileIdentity&) const = default;
};

/// The alignment that reads past the page cache need, for a file opened for them: a power of two up to kMaxAlignment,
/// as the system reports it or as found by trying. Errors: unsupported (with the reason) if reads cannot bypass the
/// page cache.
Expected<std::uint64_t> direct_alignment(SystemHandle handle, const std::string& path);

class FileSet {
 public:
  enum class Access { buffered, direct };
  /// Errors: not_found; io_error; invalid_argument (no paths, a directory); unsupported (direct refused).
  static Expected<FileSet> open(const std::vector<std::string>& paths, Access access);

  int count() const { return static_cast<int>(files_.size()); }
  SystemHandle handle(int file) const { return files_[file].handle.get(); }
  const std::string& path(int file) const { return files_[file].path; }
  std::uint64_t bytes(int file) const { return files_[file].identity.bytes; }
  std::uint64_t total_bytes() const;
  /// 1 for buffered access, else the strictest of the files.
  std::uint64_t alignment() const { return alignment_; }

  /// Ok if every file still has the FileIdentity that it had when it was opened.
  Status health() const;
  /// Ok if the read is inside its file and its destination is congruent to its offset.
  Status check(const Read& read) const;
  /// Ok if the read is inside its file.
  Status check_range(const Read& read) const;
  /// "252:1": the block device the file lies on; "0:..." for a file system that has none of its own (a network's).
  /// Windows: the volume's serial number.
  std::string device(int file) const;
  /// The disk of each file, numbered from 0 in order of appearance; all partitions of a disk count as that disk.
  int disk(int file) const { return files_[file].disk; }
  int disks() const { return disks_; }

 private:
  struct File {
    ScopedHandle handle;
    std::string path;
    FileIdentity identity;
    int disk = 0;
  };
  static Expected<File> open_one(const std::string& path, Access access);
  /// Identifies a disk.
  std::string disk_of(int file) const;
  void number_disks();

  std::vector<File> files_;
  std::uint64_t alignment_ = 1;
  int disks_ = 0;
};

/// The error of a read that reaches the end of its file.
Status ends_early(const std::string& path, std::uint64_t file_bytes, std::uint64_t offset, std::uint64_t bytes);

}  // namespace millrace::storage

// The files a backend reads: opened once, remembered as they were, so that a change under us is noticed.
// Thread-safety: immutable after open(); all const methods may be called from any thread.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "storage/storage.h"

namespace millrace::storage {

/// A file descriptor that closes itself. Move-only.
class ScopedFd {
 public:
  ScopedFd() = default;
  explicit ScopedFd(int fd) : fd_(fd) {}
  ScopedFd(ScopedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ScopedFd& operator=(ScopedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ScopedFd();
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// What O_DIRECT asks for on the file behind `fd`, opened with it: a power of two up to kMaxAlignment, found from statx
/// or by trying. Errors: unsupported (with the reason) where reads cannot bypass the page cache.
Expected<std::uint64_t> direct_alignment(int fd, const std::string& path);

class FileSet {
 public:
  enum class Access { buffered, direct };
  /// Errors: not_found; io_error; invalid_argument (no paths, a directory); unsupported (direct refused).
  static Expected<FileSet> open(const std::vector<std::string>& paths, Access access);

  int count() const { return static_cast<int>(files_.size()); }
  int fd(int file) const { return files_[file].fd.get(); }
  const std::string& path(int file) const { return files_[file].path; }
  std::uint64_t bytes(int file) const { return files_[file].bytes; }
  std::uint64_t total_bytes() const;
  /// 1 for buffered access, else the strictest of the files.
  std::uint64_t alignment() const { return alignment_; }

  /// Error unless every file still has the size, the inode and the time of change it had at open.
  Status health() const;
  /// Error unless the read lies inside its file and its destination is congruent to its offset.
  Status check(const Read& read) const;
  /// Error unless the read lies inside its file.
  Status check_range(const Read& read) const;
  /// "252:1": the block device the file lies on; "0:..." for a file system that has none of its own (a network's).
  std::string device(int file) const;
  /// The disks that the files lie on, numbered from 0 as they come; partitions of a disk are that disk.
  int disk(int file) const { return files_[file].disk; }
  int disks() const { return disks_; }

 private:
  struct File {
    ScopedFd fd;
    std::string path;
    std::uint64_t bytes = 0, inode = 0, device = 0;
    timespec modified{};
    int disk = 0;
  };
  static Expected<File> open_one(const std::string& path, Access access);
  void number_disks();

  std::vector<File> files_;
  std::uint64_t alignment_ = 1;
  int disks_ = 0;
};

/// One wording for a read that meets the end of its file.
Status ends_early(const std::string& path, std::uint64_t file_bytes, std::uint64_t offset, std::uint64_t bytes);

}  // namespace millrace::storage

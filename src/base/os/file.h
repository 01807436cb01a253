// An open file, closed by the destructor. Handles short reads and writes and interrupted calls.
// Errors of all: not_found, invalid_argument (the file exists and Create::always_new was given, or it is a link and
// Links::stay was given), out_of_budget (the disk or a quota is full), unsupported (the file system lacks the feature,
// or it or the user's limit does not allow a file of that size), unavailable (another process holds the lock),
// io_error. Messages are the system's error texts; the caller adds the path and the operation. Thread-safety: read(),
// write() and close() belong to one thread at a time; all else may be called from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/os/file_info.h"
#include "base/os/handle.h"
#include "base/status.h"

namespace millrace::os {

class File {
 public:
  enum class Access : std::uint8_t { read, write, both };
  enum class Create : std::uint8_t { never, if_missing, always_new };  // always_new: the file must not exist
  struct Options {
    Access access = Access::read;
    Create create = Create::never;
    bool empty = false;           // truncate the file
    bool append = false;          // write() writes at the current end
    bool owner_only = false;      // a new file is for its owner only; otherwise it has the user's default permissions
    bool writable_by_all = true;  // within the user's default permissions; otherwise writable by its owner only
    Links links = Links::follow;  // stay: a symbolic link is an error
    bool wait = true;     // false: a pipe is opened without waiting for its other end; unavailable: a pipe for writing
                          // that has no reader
    bool direct = false;  // bypass the page cache: reads and writes cover whole blocks
  };

  File() = default;
  ~File() { (void)close(); }
  File(File&& other) noexcept : handle_(std::exchange(other.handle_, kNoHandle)), place_(other.place_) {}
  File& operator=(File&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(place_, other.place_);
    return *this;
  }

  static Expected<File> open(const std::string& path, const Options& options);
  static Expected<File> open(const std::string& path) { return open(path, Options()); }
  bool is_open() const { return handle_ != kNoHandle; }
  /// Closes it now. Errors: data could not be written.
  Status close();

  Expected<FileInfo> info() const;
  /// Waits until a pipe that was opened without waiting has data or no writer any more; read() blocks from then on.
  /// Returns at once for other files. Errors: unavailable (timeout).
  Status wait_for_data(std::chrono::milliseconds patience) const;
  /// Reads up to out.size() bytes from where the last read() ended; 0: end of file.
  Expected<std::size_t> read(std::span<std::byte> out) const;
  /// The same, from the given offset.
  Expected<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> out) const;
  /// Writes all bytes after those of the last write().
  Status write(std::span<const std::byte> bytes) const;
  Status write(std::string_view text) const { return write(std::as_bytes(std::span(text.data(), text.size()))); }
  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) const;

  /// Truncates the file, or extends it with a hole.
  Status resize(std::uint64_t bytes) const;
  /// Reserves disk space for this many bytes. Errors: also unsupported, by the file system.
  Status reserve(std::uint64_t bytes) const;
  /// Makes written data survive a power failure; sync_data() excludes timestamps.
  Status sync() const;
  Status sync_data() const;
  /// Free bytes on its disk for this user.
  Expected<std::uint64_t> free_bytes() const;
  /// Locks the file against other processes until it is closed. wait: wait for another holder.
  Status lock(bool wait) const;
  /// Sets the time of the last change, FileInfo::modified_ns.
  Status set_modified(std::int64_t ns) const;
  /// Copies the permissions of `like`, or restricts the file to its owner.
  Status set_permissions_like(const std::string& like) const;
  Status set_owner_only() const;

 private:
  friend class Folder;
  explicit File(Handle handle) : handle_(handle) {}

  Handle handle_ = kNoHandle;
  mutable std::uint64_t place_ =
      0;  // the position of read() and write(), on systems whose read_at() moves the file's own
};

/// Renames `from` to `to` atomically and replaces an existing file: opening `to` always finds the old file or the new
/// one. Both must be on one disk.
Status replace_file(const std::string& from, const std::string& to);
/// Makes the names in a folder survive a power failure.
Status sync_folder(const std::string& path);
Status remove_file(const std::string& path);

/// Free bytes for this user on the disk of `path`.
Expected<std::uint64_t> free_bytes(const std::string& path);

}  // namespace millrace::os

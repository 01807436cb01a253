// An open file, which closes itself. Short reads and writes and interrupted calls are handled here.
// Errors of all: not_found, invalid_argument (a file is there that Create::always_new does not want, or a link that
// Links::stay does not), out_of_budget (the disk or a quota is full), unsupported (the file system has no such thing,
// or it or the user's limit allows no file of that size), unavailable (another process holds the lock), io_error. A
// message is the system's words for what is wrong; the caller names the path and what it was doing.
// Thread-safety: read(), write() and close() belong to one thread at a time; all else may be called from any.
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
  enum class Create : std::uint8_t { never, if_missing, always_new };  // always_new: there must be none yet
  struct Options {
    Access access = Access::read;
    Create create = Create::never;
    bool empty = false;           // what the file held goes
    bool append = false;          // write() writes at its end, wherever that is by then
    bool owner_only = false;      // a new file is its owner's alone; else it has the user's usual permissions
    bool writable_by_all = true;  // as far as the user's permissions for new files go; else by its owner alone
    Links links = Links::follow;  // stay: a symbolic link is an error
    bool wait = true;             // false: a pipe is opened without waiting for who is at its other end; unavailable:
                                  // one to write to that nobody reads
    bool direct = false;          // past the page cache: what is read and written lies on whole blocks
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
  /// Closes it now. Errors: what the system could not write.
  Status close();

  Expected<FileInfo> info() const;
  /// Waits until a pipe that was opened without waiting has something to read, or all who wrote are gone; read() waits
  /// from then on. What is no pipe has. Errors: unavailable (nothing in that time).
  Status wait_for_data(std::chrono::milliseconds patience) const;
  /// At most so many bytes, from where the last read() ended; 0: the file ends there.
  Expected<std::size_t> read(std::span<std::byte> out) const;
  /// The same from a place of one's own.
  Expected<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> out) const;
  /// All bytes, behind those of the last write().
  Status write(std::span<const std::byte> bytes) const;
  Status write(std::string_view text) const { return write(std::as_bytes(std::span(text.data(), text.size()))); }
  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) const;

  /// Cuts it, or lets it end in zeros that take no room.
  Status resize(std::uint64_t bytes) const;
  /// The disk's room for so many bytes is the file's. Errors: unsupported, too, where a file system cannot.
  Status reserve(std::uint64_t bytes) const;
  /// What was written survives a power cut; sync_data(): but for its times.
  Status sync() const;
  Status sync_data() const;
  /// Bytes that its disk has left for this user.
  Expected<std::uint64_t> free_bytes() const;
  /// No other process gets the lock until the file is closed. wait: until another gives it back.
  Status lock(bool wait) const;
  /// The time of its last change becomes this, FileInfo::modified_ns.
  Status set_modified(std::int64_t ns) const;
  /// The file has the permissions of `like`, or is its owner's alone.
  Status set_permissions_like(const std::string& like) const;
  Status set_owner_only() const;

 private:
  friend class Folder;
  explicit File(Handle handle) : handle_(handle) {}

  Handle handle_ = kNoHandle;
  mutable std::uint64_t place_ =
      0;  // where read() and write() go on, on systems whose read_at() moves a file's own place
};

/// Gives the file `from` the name `to` in one step, in the place of what has it: whoever opens `to` finds the old file
/// or the new one. Both lie on one disk.
Status replace_file(const std::string& from, const std::string& to);
/// The names in a folder survive a power cut.
Status sync_folder(const std::string& path);
Status remove_file(const std::string& path);

/// Bytes that the disk below `path` has left for this user.
Expected<std::uint64_t> free_bytes(const std::string& path);

}  // namespace millrace::os

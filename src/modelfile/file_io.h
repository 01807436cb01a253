// File access for src/modelfile: exact reads and complete writes whose errors name the file, and a buffered cursor over
// a file or over bytes in memory. Thread-safety: any thread may call File's methods; a Cursor belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/os/file.h"
#include "base/status.h"

namespace millrace::modelfile {

/// An open file. Move-only; closes itself.
class File {
 public:
  File() = default;

  /// Opens a regular file for reading. Errors: not_found, invalid_argument (a directory or no regular file), io_error;
  /// each names the path and what to do.
  static Expected<File> open_read(const std::string& path);

  /// Creates (or empties) a file for writing and locks it against a second writer. Errors: io_error.
  static Expected<File> create(const std::string& path);

  /// Opens an existing file for O_DIRECT writes. Errors: unsupported where the file system has none.
  static Expected<File> open_direct_write(const std::string& path);

  bool valid() const { return file_.is_open(); }
  const std::string& path() const { return path_; }

  /// Errors: io_error.
  Expected<os::FileInfo> info() const;
  Expected<std::uint64_t> size() const;
  /// Sets the length and reserves the disk space where the file system can. Errors: io_error (a full disk, with how
  /// much is free).
  Status reserve(std::uint64_t bytes) const;
  Status read_at(std::uint64_t offset, std::span<std::byte> out) const;
  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) const;
  Status sync() const;

 private:
  File(os::File file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  os::File file_;
  std::string path_;
};

/// Checks that a temporary file may be renamed to this path, which must be a regular file or not exist: a rename would
/// also replace a device or a pipe, for every user of this machine. Errors: invalid_argument.
Status check_replaceable(const std::string& path);

/// Refuses an output that would overwrite an input of the same command: one of `inputs`, by any path or link; another
/// part of a split model; or a file other than GGUF in an input folder (part of a checkpoint). Also checks the path of
/// the temporary file. Errors: invalid_argument.
Status check_output(const std::string& out, std::span<const std::string> inputs);

/// Whether the path is a regular file that begins with GGUF's magic bytes.
bool begins_like_gguf(const std::string& path);

/// Opens all of the files, in order. Errors: those of open_read().
Expected<std::vector<File>> open_files(std::span<const std::string> paths);

/// Reads forward through a file, or through bytes in memory, with a small buffer. Every read is checked against the
/// end, so callers can pass a length from the file unchecked.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes);  // bytes outlive the cursor
  Cursor(const File& file, std::uint64_t size);       // file outlives the cursor

  std::uint64_t position() const { return position_; }
  std::uint64_t size() const { return size_; }
  std::uint64_t remaining() const { return size_ - position_; }

  /// Errors: corrupt (the file ends first; `what` names what was being read), io_error.
  Status read(std::span<std::byte> out, std::string_view what);
  Status skip(std::uint64_t bytes, std::string_view what);

  template <typename T>
  Status read_number(T& out, std::string_view what) {
    return read(std::as_writable_bytes(std::span<T, 1>(&out, 1)), what);
  }

 private:
  Status cut_off(std::uint64_t bytes, std::string_view what) const;

  const File* file_ = nullptr;
  std::span<const std::byte> window_;  // the bytes at hand: [window_begin_, window_begin_ + window_.size())
  std::uint64_t window_begin_ = 0;
  std::vector<std::byte> buffer_;
  std::uint64_t position_ = 0, size_ = 0;
};

}  // namespace millrace::modelfile

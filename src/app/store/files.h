// The store's file operations: folders, atomic writes that survive a crash, and a lock between processes.
// Thread-safety: pure functions; a FolderLock belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/os/file.h"
#include "base/status.h"

namespace millrace::store {

/// What is read whole, or written to be read so, is at most so long.
constexpr std::uint64_t kMostWholeBytes = 16u << 20;
/// A model's manifest: its system message, template, licence and messages. A server reads it for each list and request.
constexpr std::uint64_t kMostManifestBytes = 1u << 20;

/// Creates a folder and those above it. Errors: io_error.
Status make_folders(const std::string& path);

/// Replaces a file in one step: other processes see the old text or the new one, also after a crash. Errors: io_error.
Status write_whole(const std::string& path, std::string_view text);

/// Errors: not_found, io_error, corrupt (larger than `most_bytes`).
Expected<std::string> read_whole(const std::string& path, std::uint64_t most_bytes = kMostWholeBytes);

/// Syncs a folder, so that its entries survive a crash. Errors: io_error.
Status sync_folder(const std::string& path);

/// Renames a file that is already synced, and syncs the folder. Errors: io_error.
Status move_file(const std::string& from, const std::string& to);

/// The free bytes for files below `path`. Errors: io_error.
Expected<std::uint64_t> free_bytes(const std::string& path);

/// Held until destroyed or removed, or until the process ends.
class FolderLock {
 public:
  /// Locks FOLDER/.lock, waiting for it if `wait`. Errors: io_error, also when someone else holds it and `wait` is
  /// false.
  static Expected<FolderLock> take(const std::string& folder, bool wait);

  /// Removes the folder with all that is in it, and ends the lock. REQUIRES: no other file in it is open: on Windows it
  /// would keep the folder. Errors: io_error.
  Status remove();

 private:
  FolderLock(std::string folder, os::File file) : folder_(std::move(folder)), file_(std::move(file)) {}
  std::string folder_;
  os::File file_;
};

/// Where `status` (of base/os) failed, the path, what was to be done and what to do. "full disk" is told as such.
Status named(const std::string& path, std::string_view doing, const Status& status);

}  // namespace millrace::store

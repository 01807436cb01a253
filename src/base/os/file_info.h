// The system's information on a file or folder. Thread-safety: functions without shared state.
// Errors of all: not_found, io_error. Messages are the system's error texts; the caller adds the path.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace millrace::os {

enum class FileKind : std::uint8_t { regular, folder, link, other };

struct FileInfo {
  FileKind kind = FileKind::other;
  std::uint64_t bytes = 0;
  std::uint64_t disk_bytes = 0;          // used on the disk: less than `bytes` for a file with holes
  std::int64_t modified_ns = 0;          // since 1970
  std::uint64_t volume = 0, number = 0;  // if both are equal, it is the same file, whatever its path
  bool is_regular() const { return kind == FileKind::regular; }
};

/// For a symbolic link: its target, or the link itself.
enum class Links : std::uint8_t { follow, stay };

Expected<FileInfo> file_info(const std::string& path, Links links = Links::follow);

/// The system's name for the disk of FileInfo::volume ("vda1", "nvme0n1p2"); "device NUMBER" if it has none (overlays,
/// network).
std::string volume_name(std::uint64_t volume);

}  // namespace millrace::os

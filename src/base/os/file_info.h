// What the system knows of a file or folder. Thread-safety: functions without shared state.
// Errors of all: not_found, io_error. A message is the system's words for what is wrong; the caller names the path.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace millrace::os {

enum class FileKind : std::uint8_t { regular, folder, link, other };

struct FileInfo {
  FileKind kind = FileKind::other;
  std::uint64_t bytes = 0;
  std::uint64_t disk_bytes = 0;          // what it takes of the disk: less than `bytes` where it has holes
  std::int64_t modified_ns = 0;          // since the beginning of 1970
  std::uint64_t volume = 0, number = 0;  // both alike: the same file, whatever its paths
  bool is_regular() const { return kind == FileKind::regular; }
};

/// Of a symbolic link: what it leads to, or the link itself.
enum class Links : std::uint8_t { follow, stay };

Expected<FileInfo> file_info(const std::string& path, Links links = Links::follow);

/// The disk behind FileInfo::volume as the system names it ("vda1", "nvme0n1p2"); "device NUMBER" where it has no name
/// (overlays, network).
std::string volume_name(std::uint64_t volume);

}  // namespace millrace::os

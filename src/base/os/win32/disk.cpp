#include "base/os/disk.h"

#include "base/os/file_info.h"
#include "base/os/win32/win32.h"

namespace millrace::os {

std::optional<Disk> find_disk(std::uint64_t volume) {
  Disk disk{volume_name(volume)};
  const std::wstring root = to_wide(disk.name) + L"\\";
  const UINT kind = root.size() == 3 ? GetDriveTypeW(root.c_str()) : DRIVE_UNKNOWN;  // "C:\"
  if (kind != DRIVE_FIXED && kind != DRIVE_REMOVABLE) return std::nullopt;
  return disk;  // Windows does not report how far it reads ahead
}

}  // namespace millrace::os

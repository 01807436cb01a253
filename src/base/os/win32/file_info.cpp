#include "base/os/file_info.h"

#include <cstring>

#include "base/os/win32/win32.h"

namespace millrace::os {
namespace {

constexpr std::int64_t k1970 = 116'444'736'000'000'000;  // in the system's unit, 100 ns since the beginning of 1601

template <typename Info>
bool ask(HANDLE handle, FILE_INFO_BY_HANDLE_CLASS kind, Info& info) {
  return GetFileInformationByHandleEx(handle, kind, &info, sizeof(info)) != 0;
}

/// True for reparse points that name another path: symbolic links and mount points, not the tags that cloud and
/// deduplicating file systems use internally.
bool is_link(HANDLE handle, DWORD attributes) {
  FILE_ATTRIBUTE_TAG_INFO tag{};
  return (attributes & FILE_ATTRIBUTE_REPARSE_POINT) != 0 && ask(handle, FileAttributeTagInfo, tag) &&
         (tag.ReparseTag == IO_REPARSE_TAG_SYMLINK || tag.ReparseTag == IO_REPARSE_TAG_MOUNT_POINT);
}

}  // namespace

Expected<FileInfo> info_of(HANDLE handle) {
  FileInfo info;
  if (GetFileType(handle) != FILE_TYPE_DISK) return info;
  FILE_BASIC_INFO basic{};
  FILE_STANDARD_INFO standard{};
  FILE_ID_INFO id{};
  if (!ask(handle, FileBasicInfo, basic) || !ask(handle, FileStandardInfo, standard)) return last_error();
  info.kind = is_link(handle, basic.FileAttributes) ? FileKind::link
              : standard.Directory != 0             ? FileKind::folder
                                                    : FileKind::regular;
  info.bytes = static_cast<std::uint64_t>(standard.EndOfFile.QuadPart);
  info.disk_bytes = static_cast<std::uint64_t>(standard.AllocationSize.QuadPart);
  info.modified_ns = (basic.LastWriteTime.QuadPart - k1970) * 100;
  if (ask(handle, FileIdInfo, id)) {
    std::uint64_t halves[2];  // the second is zero on NTFS; ReFS and network drives use both
    static_assert(sizeof(halves) == sizeof(id.FileId));
    std::memcpy(halves, &id.FileId, sizeof(halves));
    info.volume = id.VolumeSerialNumber;
    info.number = halves[0] ^ halves[1];
    return info;
  }
  BY_HANDLE_FILE_INFORMATION old{};  // FAT has no identifiers of 128 bits
  if (GetFileInformationByHandle(handle, &old) == 0) return last_error();
  info.volume = old.dwVolumeSerialNumber;
  info.number = std::uint64_t{old.nFileIndexHigh} << 32 | old.nFileIndexLow;
  return info;
}

Expected<FileInfo> info_of(const std::wstring& path, Links links) {
  const DWORD flags = FILE_FLAG_BACKUP_SEMANTICS | (links == Links::stay ? FILE_FLAG_OPEN_REPARSE_POINT : 0);
  const OwnedHandle handle(
      CreateFileW(path.c_str(), FILE_READ_ATTRIBUTES, kShareAll, nullptr, OPEN_EXISTING, flags, nullptr));
  if (handle.get() == INVALID_HANDLE_VALUE) return last_error();
  return info_of(handle.get());
}

Expected<FileInfo> file_info(const std::string& path, Links links) { return info_of(wide_path(path), links); }

std::string volume_name(std::uint64_t volume) {
  wchar_t drives[512] = {};  // "C:\0D:\0\0"
  GetLogicalDriveStringsW(511, drives);
  for (const wchar_t* drive = drives; *drive != L'\0'; drive += std::wcslen(drive) + 1) {
    DWORD serial = 0;  // the lower half of what FileIdInfo calls the volume
    if (GetVolumeInformationW(drive, nullptr, 0, &serial, nullptr, nullptr, nullptr, 0) != 0 &&
        serial == static_cast<DWORD>(volume))
      return to_utf8({drive, 2});
  }
  return fmt::format("device {:x}", volume);
}

Status set_modified(const std::wstring& path, std::int64_t ns) {
  const DWORD flags = FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT;
  const OwnedHandle handle(
      CreateFileW(path.c_str(), FILE_WRITE_ATTRIBUTES, kShareAll, nullptr, OPEN_EXISTING, flags, nullptr));
  if (handle.get() == INVALID_HANDLE_VALUE) return last_error();
  ULARGE_INTEGER ticks{};
  ticks.QuadPart = static_cast<std::uint64_t>(ns / 100 + k1970);
  const FILETIME time{ticks.LowPart, ticks.HighPart};
  return outcome(SetFileTime(handle.get(), nullptr, &time, &time));
}

}  // namespace millrace::os

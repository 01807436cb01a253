#include "storage/file_set.h"

#include <windows.h>
// After windows.h, whose types it uses.
#include <winioctl.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "storage/win32/system.h"

namespace millrace::storage {
namespace {

constexpr std::uint64_t kMinAlignment = 512;

HANDLE native(SystemHandle handle) {
  return reinterpret_cast<HANDLE>(handle);  // NOLINT(performance-no-int-to-ptr): what a HANDLE is
}

template <typename Info>
bool ask(HANDLE file, FILE_INFO_BY_HANDLE_CLASS which, Info& info) {
  return GetFileInformationByHandleEx(file, which, &info, sizeof(info)) != 0;
}

/// What can change of an open file, into `identity`: it stays on its volume and keeps its number, which take ten times
/// as long to ask for. Errors: io_error (the system's words).
Status look_again(HANDLE file, FileIdentity& identity) {
  FILE_STANDARD_INFO size{};
  FILE_BASIC_INFO times{};
  if (!ask(file, FileStandardInfo, size) || !ask(file, FileBasicInfo, times))
    return {Code::io_error, system_words(GetLastError())};
  constexpr std::int64_t kTicksTo1970 = 116'444'736'000'000'000;  // of 100 ns, since 1601
  identity.bytes = static_cast<std::uint64_t>(size.EndOfFile.QuadPart);
  identity.modified_ns = (times.LastWriteTime.QuadPart - kTicksTo1970) * 100;
  return {};
}

/// Errors: io_error (the system's words).
Expected<FileIdentity> identity_of(HANDLE file) {
  FileIdentity identity;
  MR_RETURN_IF_ERROR(look_again(file, identity));
  BY_HANDLE_FILE_INFORMATION short_names{};
  if (GetFileInformationByHandle(file, &short_names) == 0) return Status(Code::io_error, system_words(GetLastError()));
  identity.volume = short_names.dwVolumeSerialNumber;
  identity.number = {static_cast<std::uint64_t>(short_names.nFileIndexHigh) << 32 | short_names.nFileIndexLow, 0};
  // File systems with file numbers of 128 bits (ReFS) have them here, and older ones do not have this call.
  if (FILE_ID_INFO id{}; ask(file, FileIdInfo, id)) {
    identity.volume = id.VolumeSerialNumber;
    std::memcpy(identity.number.data(), &id.FileId, sizeof(id.FileId));
  }
  return identity;
}

/// The volume that a file lies on, opened to be asked; asking needs no right to read it.
ScopedHandle volume_of(const std::string& path) {
  const std::wstring full = wide_path(path);
  std::wstring place(full.size() + 2, L'\0');
  if (GetVolumePathNameW(full.c_str(), place.data(), static_cast<DWORD>(place.size())) == 0) return {};
  wchar_t name[MAX_PATH] = {};
  if (GetVolumeNameForVolumeMountPointW(place.c_str(), name, MAX_PATH) == 0) return {};
  std::wstring device = name;
  if (device.ends_with(L'\\')) device.pop_back();  // with it, the name is that of the root folder
  return ScopedHandle(reinterpret_cast<SystemHandle>(CreateFileW(
      device.c_str(), 0, FILE_SHARE_READ | FILE_SHARE_WRITE, nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr)));
}

/// What the file system or the volume's driver says; 0: neither does.
std::uint64_t told_alignment(HANDLE file, const std::string& path) {
  if (FILE_STORAGE_INFO info{}; ask(file, FileStorageInfo, info))
    return std::max<std::uint64_t>(info.LogicalBytesPerSector, kMinAlignment);
  const ScopedHandle volume = volume_of(path);
  if (!volume.open()) return 0;
  STORAGE_PROPERTY_QUERY query{};
  query.PropertyId = StorageAccessAlignmentProperty;
  query.QueryType = PropertyStandardQuery;
  STORAGE_ACCESS_ALIGNMENT_DESCRIPTOR found{};
  DWORD written = 0;
  if (DeviceIoControl(native(volume.get()), IOCTL_STORAGE_QUERY_PROPERTY, &query, sizeof(query), &found, sizeof(found),
                      &written, nullptr) == 0 ||
      written < sizeof(found))
    return 0;
  return std::max<std::uint64_t>(found.BytesPerLogicalSector, kMinAlignment);
}

struct FreePages {
  void operator()(void* memory) const { VirtualFree(memory, 0, MEM_RELEASE); }
};

/// Reads one block at one block's offset, with a buffer aligned to a block and no more.
Status try_direct_read(SystemHandle handle, const std::string& path, std::uint64_t alignment) {
  MR_ASSIGN_OR_RETURN(const OverlappedFile file, OverlappedFile::open_again(handle, path, alignment));
  const std::unique_ptr<void, FreePages> memory(
      VirtualAlloc(nullptr, 2 * kMaxAlignment, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
  if (memory == nullptr) return error(Code::out_of_budget, "no memory for a block of {} bytes", 2 * kMaxAlignment);
  std::byte* const block = static_cast<std::byte*>(memory.get()) + (alignment < kMaxAlignment ? alignment : 0);
  const std::int64_t result = file.read(alignment, alignment, block);
  return result >= 0 ? Status() : Status(Code::unsupported, attempt_cause(static_cast<int>(-result)));
}

/// A name that Windows knows for no file, as it tells them.
bool is_missing(DWORD code) {
  return code == ERROR_FILE_NOT_FOUND || code == ERROR_PATH_NOT_FOUND || code == ERROR_INVALID_NAME ||
         code == ERROR_BAD_NETPATH || code == ERROR_BAD_NET_NAME || code == ERROR_INVALID_DRIVE;
}

}  // namespace

ScopedHandle::~ScopedHandle() {
  if (open()) CloseHandle(native(handle_));
}

Expected<std::uint64_t> direct_alignment(SystemHandle handle, const std::string& path) {
  const std::uint64_t told = told_alignment(native(handle), path);
  if (told > kMaxAlignment || !std::has_single_bit(std::max<std::uint64_t>(told, 1)))
    return error(Code::unsupported, "reads of {} past the cache ask for blocks of {} bytes, more than the {} supported",
                 path, told, kMaxAlignment);
  Status refused;
  for (std::uint64_t alignment = told != 0 ? told : kMinAlignment; alignment <= kMaxAlignment; alignment *= 2) {
    refused = try_direct_read(handle, path, alignment);
    if (refused.ok()) return alignment;
    if (refused.code() != Code::unsupported) return refused;
  }
  return error(Code::unsupported, "the file system of {} reads nothing past the cache ({})", path, refused.message());
}

Expected<FileSet::File> FileSet::open_one(const std::string& path, Access access) {
  File file;
  file.path = path;
  const std::wstring name = wide_path(path);
  const DWORD attributes = GetFileAttributesW(name.c_str());
  if (attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY) != 0)
    return error(Code::invalid_argument, "{} is not a regular file; name a model file", path);
  const DWORD flags = FILE_FLAG_OVERLAPPED | (access == Access::direct ? FILE_FLAG_NO_BUFFERING : 0);
  file.handle = ScopedHandle(reinterpret_cast<SystemHandle>(
      CreateFileW(name.c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr,
                  OPEN_EXISTING, flags, nullptr)));
  if (!file.handle.open()) {
    const DWORD code = GetLastError();
    if (is_missing(code)) return error(Code::not_found, "{}: no such file; check the path", path);
    if (code == ERROR_INVALID_PARAMETER && access == Access::direct)
      return error(Code::unsupported, "the file system of {} reads nothing past the cache", path);
    return error(Code::io_error, "cannot open {}: {}", path, system_words(code));
  }
  if (GetFileType(native(file.handle.get())) != FILE_TYPE_DISK)
    return error(Code::invalid_argument, "{} is not a regular file; name a model file", path);
  auto identity = identity_of(native(file.handle.get()));
  if (!identity.ok()) return error(Code::io_error, "cannot ask about {}: {}", path, identity.status().message());
  file.identity = *identity;
  return file;
}

Status FileSet::health() const {
  for (const File& file : files_) {
    FileIdentity now = file.identity;
    if (const Status asked = look_again(native(file.handle.get()), now); !asked.ok())
      return error(Code::io_error, "{} can no longer be reached ({}): start again", file.path, asked.message());
    if (now != file.identity)
      return error(Code::io_error, "{} changed while it was being read: start again", file.path);
  }
  return {};
}

std::string FileSet::device(int file) const { return fmt::format("{:x}", files_[file].identity.volume); }

/// The disk's number where the volume lies on one disk, so that its volumes share a queue; else the volume.
std::string FileSet::disk_of(int file) const {
  const ScopedHandle volume = volume_of(path(file));
  VOLUME_DISK_EXTENTS extents{};
  DWORD written = 0;
  if (volume.open() && DeviceIoControl(native(volume.get()), IOCTL_VOLUME_GET_VOLUME_DISK_EXTENTS, nullptr, 0, &extents,
                                       sizeof(extents), &written, nullptr) != 0)
    return fmt::format("disk {}", extents.Extents[0].DiskNumber);
  return device(file);
}

}  // namespace millrace::storage

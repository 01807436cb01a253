#include "base/os/file.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/os/win32/win32.h"

namespace millrace::os {
namespace {

/// The locked byte. It lies beyond any file of ours, because a lock on Windows also blocks reads and writes.
constexpr DWORD kLockPlace = 0x7fff'ffff;

OVERLAPPED at(std::uint64_t offset) {
  OVERLAPPED place{};
  place.Offset = static_cast<DWORD>(offset);
  place.OffsetHigh = static_cast<DWORD>(offset >> 32);
  return place;
}

DWORD one_call(std::size_t bytes) { return static_cast<DWORD>(std::min<std::size_t>(bytes, 1u << 30)); }

/// System calls fail on an uncommitted page, whereas the program's own access commits it
/// (device/win32/host_memory.cpp): touch each page first.
void touch(std::span<const std::byte> bytes) {
  constexpr std::size_t kPage = 4096;
  for (std::size_t i = 0; i < bytes.size(); i += kPage) (void)*static_cast<const volatile std::byte*>(&bytes[i]);
  if (!bytes.empty()) (void)*static_cast<const volatile std::byte*>(&bytes.back());
}

Expected<std::size_t> read_from(HANDLE handle, std::uint64_t offset, std::span<std::byte> out) {
  OVERLAPPED place = at(offset);
  DWORD got = 0;
  if (ReadFile(handle, out.data(), one_call(out.size()), &got, &place) != 0) return std::size_t{got};
  DWORD number = GetLastError();
  if (number == ERROR_NOACCESS) {
    touch(out);
    if (ReadFile(handle, out.data(), one_call(out.size()), &got, &place) != 0) return std::size_t{got};
    number = GetLastError();
  }
  if (number == ERROR_HANDLE_EOF || number == ERROR_BROKEN_PIPE) return std::size_t{0};
  return error_of(number);
}

Status set_end(HANDLE handle, std::uint64_t bytes) {
  FILE_END_OF_FILE_INFO end{};
  end.EndOfFile.QuadPart = static_cast<LONGLONG>(bytes);
  return outcome(SetFileInformationByHandle(handle, FileEndOfFileInfo, &end, sizeof(end)));
}

Status set_permissions(HANDLE handle, PACL list) {
  const auto path = path_of(handle);
  if (!path.ok()) return path.status();
  std::wstring name = *path;
  const DWORD number = SetNamedSecurityInfoW(name.data(), SE_FILE_OBJECT,
                                             DACL_SECURITY_INFORMATION | PROTECTED_DACL_SECURITY_INFORMATION, nullptr,
                                             nullptr, list, nullptr);
  return number == ERROR_SUCCESS ? Status() : error_of(number);
}

}  // namespace

Expected<Handle> open_native(const std::wstring& path, const File::Options& options) {
  const bool writes = options.access != File::Access::read;
  DWORD access = options.access == File::Access::write ? 0 : GENERIC_READ;
  // With only the right to append, every write goes to the end.
  if (writes) access |= options.append ? FILE_APPEND_DATA | FILE_WRITE_ATTRIBUTES | SYNCHRONIZE : GENERIC_WRITE;
  if (options.empty) access |= FILE_WRITE_DATA;
  const DWORD creation = options.create == File::Create::always_new   ? CREATE_NEW
                         : options.create == File::Create::if_missing ? OPEN_ALWAYS
                                                                      : OPEN_EXISTING;
  DWORD flags = FILE_ATTRIBUTE_NORMAL | (options.direct ? FILE_FLAG_NO_BUFFERING : 0);
  if (!writes) flags |= FILE_FLAG_BACKUP_SEMANTICS;  // lets folders open, so that they can be reported as folders
  if (options.links == Links::stay) flags |= FILE_FLAG_OPEN_REPARSE_POINT;
  const OwnerOnly own = options.owner_only ? owner_only() : OwnerOnly();
  SECURITY_ATTRIBUTES security{sizeof(security), own.get(), FALSE};
  OwnedHandle handle(CreateFileW(path.c_str(), access, kShareAll, &security, creation, flags, nullptr));
  if (handle.get() == INVALID_HANDLE_VALUE) return last_error();
  if (options.links == Links::stay) {
    MR_ASSIGN_OR_RETURN(const FileInfo info, info_of(handle.get()));
    if (info.kind == FileKind::link) return error(Code::invalid_argument, "it is a symbolic link");
  }
  if (options.empty) MR_RETURN_IF_ERROR(set_end(handle.get(), 0));
  if (options.empty && options.append) {  // reopen with only the right to append
    File::Options again = options;
    again.empty = false;
    again.create = File::Create::never;
    return open_native(path, again);
  }
  return to_handle(handle.release());
}

Expected<std::wstring> path_of(HANDLE handle) {
  std::wstring path(GetFinalPathNameByHandleW(handle, nullptr, 0, 0), L'\0');
  if (path.empty()) return last_error();
  path.resize(GetFinalPathNameByHandleW(handle, path.data(), static_cast<DWORD>(path.size()), 0));
  return path;
}

Status replace(const std::wstring& from, const std::wstring& to) {
  // Try POSIX semantics first, which also replace an open file (Windows 10 since 2018, NTFS).
  const OwnedHandle handle(CreateFileW(from.c_str(), DELETE | SYNCHRONIZE, kShareAll, nullptr, OPEN_EXISTING,
                                       FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT, nullptr));
  if (handle.get() == INVALID_HANDLE_VALUE) return last_error();
  struct Rename {  // FILE_RENAME_INFO with the flags of its newer form
    DWORD flags;
    HANDLE root;
    DWORD name_bytes;
    wchar_t name[1];
  };
  std::error_code failure;
  const std::wstring full = std::filesystem::absolute(to, failure).wstring();
  std::vector<std::byte> memory(sizeof(Rename) + full.size() * sizeof(wchar_t));
  auto& rename = *reinterpret_cast<Rename*>(memory.data());
  constexpr DWORD replace_if_exists = 1, posix_semantics = 2;
  rename.flags = replace_if_exists | posix_semantics;
  rename.name_bytes = static_cast<DWORD>(full.size() * sizeof(wchar_t));
  std::copy(full.begin(), full.end(), rename.name);
  constexpr auto rename_info_ex = static_cast<FILE_INFO_BY_HANDLE_CLASS>(22);  // FileRenameInfoEx
  if (!failure &&
      SetFileInformationByHandle(handle.get(), rename_info_ex, &rename, static_cast<DWORD>(memory.size())) != 0)
    return {};
  return outcome(MoveFileExW(from.c_str(), to.c_str(), MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH));
}

Status remove(const std::wstring& path) {
  if (DeleteFileW(path.c_str()) != 0) return {};
  const DWORD number = GetLastError();
  const DWORD attributes = GetFileAttributesW(path.c_str());
  constexpr DWORD link_to_folder = FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT;
  const bool is_link = attributes != INVALID_FILE_ATTRIBUTES && (attributes & link_to_folder) == link_to_folder;
  if (is_link && RemoveDirectoryW(path.c_str()) != 0) return {};
  return error_of(number);
}

Expected<std::uint64_t> free_bytes_of(const std::wstring& path) {
  ULARGE_INTEGER left{};
  std::wstring folder = path;
  if (const DWORD found = GetFileAttributesW(path.c_str());
      found != INVALID_FILE_ATTRIBUTES && (found & FILE_ATTRIBUTE_DIRECTORY) == 0)
    folder = std::filesystem::path(path).parent_path().wstring();
  if (folder.empty()) folder = L".";
  if (GetDiskFreeSpaceExW(folder.c_str(), &left, nullptr, nullptr) == 0) return last_error();
  return std::uint64_t{left.QuadPart};
}

Status write_all(HANDLE handle, std::span<const std::byte> bytes, std::uint64_t& place) {
  while (!bytes.empty()) {
    OVERLAPPED where = at(place);
    DWORD put = 0;
    if (WriteFile(handle, bytes.data(), one_call(bytes.size()), &put, &where) == 0) {
      if (GetLastError() != ERROR_NOACCESS) return last_error();
      touch(bytes);
      if (WriteFile(handle, bytes.data(), one_call(bytes.size()), &put, &where) == 0) return last_error();
    }
    if (put == 0) return Status(Code::out_of_budget, "nothing could be written");
    bytes = bytes.subspan(put);
    place += put;
  }
  return {};
}

Expected<File> File::open(const std::string& path, const Options& options) {
  MR_ASSIGN_OR_RETURN(const Handle handle, open_native(wide_path(path), options));
  return File(handle);
}

Status File::close() {
  const Handle handle = std::exchange(handle_, kNoHandle);
  return handle == kNoHandle ? Status() : outcome(CloseHandle(native(handle)));
}

Expected<FileInfo> File::info() const { return info_of(native(handle_)); }

Status File::wait_for_data(std::chrono::milliseconds patience) const {
  if (GetFileType(native(handle_)) != FILE_TYPE_PIPE) return {};
  for (const auto end = std::chrono::steady_clock::now() + patience;;) {
    DWORD there = 0;
    if (PeekNamedPipe(native(handle_), nullptr, 0, nullptr, &there, nullptr) == 0 || there > 0) return {};
    if (std::chrono::steady_clock::now() >= end) return Status(Code::unavailable, "nobody writes into this pipe");
    Sleep(10);
  }
}

Expected<std::size_t> File::read(std::span<std::byte> out) const {
  auto got = read_from(native(handle_), place_, out);
  if (got.ok()) place_ += *got;
  return got;
}

Expected<std::size_t> File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  return read_from(native(handle_), offset, out);
}

Status File::write(std::span<const std::byte> bytes) const { return write_all(native(handle_), bytes, place_); }

Status File::write_at(std::uint64_t offset, std::span<const std::byte> bytes) const {
  return write_all(native(handle_), bytes, offset);
}

Status File::resize(std::uint64_t bytes) const {
  const auto now = info_of(native(handle_));
  DWORD unused = 0;
  if (now.ok() && bytes > now.value().bytes)  // file systems without sparse files refuse, and the zeros take disk space
    (void)DeviceIoControl(native(handle_), FSCTL_SET_SPARSE, nullptr, 0, nullptr, 0, &unused, nullptr);
  return set_end(native(handle_), bytes);
}

Status File::reserve(std::uint64_t bytes) const {
  if (bytes == 0) return {};
  const auto now = info_of(native(handle_));
  FILE_ALLOCATION_INFO room{};
  room.AllocationSize.QuadPart = static_cast<LONGLONG>(bytes);
  if (SetFileInformationByHandle(native(handle_), FileAllocationInfo, &room, sizeof(room)) == 0) {
    const Status status = last_error();
    return status.code() == Code::out_of_budget ? status : Status(Code::unsupported, status.message());
  }
  return now.ok() && now.value().bytes < bytes ? set_end(native(handle_), bytes) : now.status();
}

Status File::sync() const { return outcome(FlushFileBuffers(native(handle_))); }
Status File::sync_data() const { return sync(); }

Expected<std::uint64_t> File::free_bytes() const {
  MR_ASSIGN_OR_RETURN(const std::wstring path, path_of(native(handle_)));
  return free_bytes_of(path);
}

Status File::lock(bool wait) const {
  OVERLAPPED place{};
  place.OffsetHigh = kLockPlace;
  const DWORD flags = LOCKFILE_EXCLUSIVE_LOCK | (wait ? 0 : LOCKFILE_FAIL_IMMEDIATELY);
  return outcome(LockFileEx(native(handle_), flags, 0, 1, 0, &place));
}

Status File::set_modified(std::int64_t ns) const {
  MR_ASSIGN_OR_RETURN(const std::wstring path, path_of(native(handle_)));
  return os::set_modified(path, ns);
}

Status File::set_permissions_like(const std::string& like) const {
  PACL list = nullptr;
  PSECURITY_DESCRIPTOR description = nullptr;
  std::wstring path = wide_path(like);
  const DWORD number = GetNamedSecurityInfoW(path.data(), SE_FILE_OBJECT, DACL_SECURITY_INFORMATION, nullptr, nullptr,
                                             &list, nullptr, &description);
  if (number != ERROR_SUCCESS) return error_of(number);
  const std::unique_ptr<void, FreeLocalLater> owned(description);
  SECURITY_DESCRIPTOR_CONTROL control = 0;
  DWORD revision = 0;
  if (GetSecurityDescriptorControl(description, &control, &revision) == 0) return last_error();
  // Skip permissions inherited from the folder: the new file inherits them, too.
  return (control & SE_DACL_PROTECTED) == 0 ? Status() : set_permissions(native(handle_), list);
}

Status File::set_owner_only() const {
  const OwnerOnly own = owner_only();
  BOOL present = FALSE, usual = FALSE;
  PACL list = nullptr;
  if (own == nullptr || GetSecurityDescriptorDacl(own.get(), &present, &list, &usual) == 0) return last_error();
  return set_permissions(native(handle_), list);
}

Status replace_file(const std::string& from, const std::string& to) { return replace(wide_path(from), wide_path(to)); }

Status sync_folder(const std::string& path) {
  // A rename is durable when it returns (MOVEFILE_WRITE_THROUGH, NTFS's log), so folders need no flush.
  const auto info = file_info(path);
  if (info.ok() && info.value().kind != FileKind::folder) return error(Code::not_found, "it is no folder");
  return info.status();
}

Status remove_file(const std::string& path) { return remove(wide_path(path)); }

Expected<std::uint64_t> free_bytes(const std::string& path) { return free_bytes_of(wide_path(path)); }

}  // namespace millrace::os

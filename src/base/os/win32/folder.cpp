#include "base/os/folder.h"

#include <filesystem>

#include "base/os/win32/win32.h"

namespace millrace::os {
namespace {

Expected<std::wstring> path_in(Handle folder, const std::string& name) {
  MR_ASSIGN_OR_RETURN(std::wstring path, path_of(native(folder)));
  return path + L"\\" + to_wide(name);
}

/// True for accounts that may do anything anyway: this user, administrators and the system.
bool is_trusted(PSID sid, PSID owner) {
  return IsWellKnownSid(sid, WinLocalSystemSid) != 0 || IsWellKnownSid(sid, WinBuiltinAdministratorsSid) != 0 ||
         IsWellKnownSid(sid, WinCreatorOwnerSid) != 0 || IsWellKnownSid(sid, WinCreatorOwnerRightsSid) != 0 ||
         EqualSid(sid, owner) != 0;
}

bool may_write(const ACE_HEADER* entry, PSID owner) {
  constexpr DWORD writing = FILE_WRITE_DATA | FILE_APPEND_DATA | FILE_DELETE_CHILD | DELETE | WRITE_DAC | WRITE_OWNER |
                            GENERIC_WRITE | GENERIC_ALL;
  if (entry->AceType != ACCESS_ALLOWED_ACE_TYPE || (entry->AceFlags & INHERIT_ONLY_ACE) != 0) return false;
  const auto* const allowed = reinterpret_cast<const ACCESS_ALLOWED_ACE*>(entry);
  return (allowed->Mask & writing) != 0 && !is_trusted(const_cast<DWORD*>(&allowed->SidStart), owner);
}

}  // namespace

Folder::~Folder() {
  if (handle_ != kNoHandle) CloseHandle(native(handle_));
}

// Opened without FILE_SHARE_DELETE, so that nobody can rename the folder and put another in its place.
Expected<Folder> Folder::open(const std::string& path) {
  OwnedHandle handle(
      CreateFileW(wide_path(path).c_str(), FILE_LIST_DIRECTORY | FILE_READ_ATTRIBUTES | READ_CONTROL | SYNCHRONIZE,
                  FILE_SHARE_READ | FILE_SHARE_WRITE, nullptr, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, nullptr));
  if (handle.get() == INVALID_HANDLE_VALUE) return last_error();
  MR_ASSIGN_OR_RETURN(const FileInfo info, info_of(handle.get()));
  if (info.kind != FileKind::folder) return error(Code::not_found, "it is no folder");
  return Folder(to_handle(handle.release()));
}

Expected<bool> Folder::is_private() const {
  PSID owner = nullptr;
  PACL list = nullptr;
  PSECURITY_DESCRIPTOR description = nullptr;
  const DWORD number =
      GetSecurityInfo(native(handle_), SE_FILE_OBJECT, OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION, &owner,
                      nullptr, &list, nullptr, &description);
  if (number != ERROR_SUCCESS) return error_of(number);
  const std::unique_ptr<void, FreeLocalLater> owned(description);
  if (list == nullptr || owner == nullptr) return false;  // without a list, everybody has all rights
  const bool ours =
      is_trusted(owner, owner) &&
      (IsWellKnownSid(owner, WinLocalSystemSid) != 0 || IsWellKnownSid(owner, WinBuiltinAdministratorsSid) != 0 ||
       *GetSidSubAuthority(owner, *GetSidSubAuthorityCount(owner) - 1u) == user_number());
  for (DWORD i = 0; ours && i < list->AceCount; ++i) {
    void* entry = nullptr;
    if (GetAce(list, i, &entry) == 0) return last_error();
    if (may_write(static_cast<const ACE_HEADER*>(entry), owner)) return false;
  }
  return ours;
}

Status Folder::check_writable() const {
  MR_ASSIGN_OR_RETURN(const std::wstring path, path_of(native(handle_)));
  // Only requests the right, to see whether it is granted.
  const OwnedHandle trial(CreateFileW(path.c_str(), FILE_ADD_FILE | SYNCHRONIZE, kShareAll, nullptr, OPEN_EXISTING,
                                      FILE_FLAG_BACKUP_SEMANTICS, nullptr));
  return trial.get() == INVALID_HANDLE_VALUE ? last_error() : Status();
}

Expected<File> Folder::open_file(const std::string& name, const File::Options& options) const {
  MR_ASSIGN_OR_RETURN(const std::wstring path, path_in(handle_, name));
  MR_ASSIGN_OR_RETURN(const Handle handle, open_native(path, options));
  return File(handle);
}

Expected<FileInfo> Folder::info(const std::string& name) const {
  MR_ASSIGN_OR_RETURN(const std::wstring path, path_in(handle_, name));
  return info_of(path, Links::stay);
}

Status Folder::for_each(const std::function<void(const std::string& name)>& take) const {
  MR_ASSIGN_OR_RETURN(const std::wstring every, path_in(handle_, "*"));
  WIN32_FIND_DATAW found{};
  HANDLE const search = FindFirstFileExW(every.c_str(), FindExInfoBasic, &found, FindExSearchNameMatch, nullptr, 0);
  if (search == INVALID_HANDLE_VALUE) return last_error();
  do take(to_utf8(found.cFileName));
  while (FindNextFileW(search, &found) != 0);
  const DWORD number = GetLastError();
  FindClose(search);
  return number == ERROR_NO_MORE_FILES ? Status() : error_of(number);
}

Status Folder::set_modified(const std::string& name, std::int64_t ns) const {
  MR_ASSIGN_OR_RETURN(const std::wstring path, path_in(handle_, name));
  return os::set_modified(path, ns);
}

Status Folder::replace(const std::string& from, const std::string& to) const {
  MR_ASSIGN_OR_RETURN(const std::wstring source, path_in(handle_, from));
  MR_ASSIGN_OR_RETURN(const std::wstring target, path_in(handle_, to));
  return os::replace(source, target);
}

Status Folder::remove(const std::string& name) const {
  MR_ASSIGN_OR_RETURN(const std::wstring path, path_in(handle_, name));
  return os::remove(path);
}

Expected<std::uint64_t> Folder::free_bytes() const {
  MR_ASSIGN_OR_RETURN(const std::wstring path, path_of(native(handle_)));
  return free_bytes_of(path);
}

Status make_private_folder(const std::string& path) {
  const OwnerOnly own = owner_only();
  SECURITY_ATTRIBUTES security{sizeof(security), own.get(), FALSE};
  if (CreateDirectoryW(wide_path(path).c_str(), &security) != 0 || GetLastError() == ERROR_ALREADY_EXISTS) return {};
  return last_error();
}

Status link_file(const std::string& target, const std::string& link) {
  const std::filesystem::path file = (std::filesystem::path(link).parent_path() / target).lexically_normal();
  return outcome(CreateHardLinkW(wide_path(link).c_str(), wide_path(file.string()).c_str(), nullptr));
}

}  // namespace millrace::os

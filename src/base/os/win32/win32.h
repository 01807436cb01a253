// Shared by the Windows sources of this folder only.
#pragma once

// clang-format off: winsock2.h stands before windows.h, which else brings in an older one; the rest needs both.
#include <aclapi.h>
#include <sddl.h>
#include <shellapi.h>
#include <windows.h>
#include <winioctl.h>
#include <winsock2.h>
// clang-format on

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/os/file.h"
#include "base/os/handle.h"
#include "base/status.h"

namespace millrace::os {

/// Convert between UTF-8 and the system's UTF-16. Invalid text becomes U+FFFD.
std::wstring to_wide(std::string_view text);
std::string to_utf8(std::wstring_view text);

/// A path for the system's functions, also beyond 260 characters.
std::wstring wide_path(const std::string& path);

/// An error with the system's text for the number, and the code by file.h's rules; io_error by default.
Status error_of(DWORD number);
inline Status last_error() { return error_of(GetLastError()); }
inline Status outcome(BOOL succeeded) { return succeeded != 0 ? Status() : last_error(); }

inline HANDLE native(Handle handle) { return reinterpret_cast<HANDLE>(handle); }
inline Handle to_handle(HANDLE handle) { return reinterpret_cast<Handle>(handle); }

/// Closes a HANDLE that is not INVALID_HANDLE_VALUE.
struct CloseHandleLater {
  using pointer = HANDLE;
  void operator()(HANDLE handle) const {
    if (handle != nullptr && handle != INVALID_HANDLE_VALUE) CloseHandle(handle);
  }
};
using OwnedHandle = std::unique_ptr<HANDLE, CloseHandleLater>;

/// Open files may be read, written, renamed and deleted by others, as on other systems.
inline constexpr DWORD kShareAll = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

/// Opens a file as File::open() does. Errors: those of file.h.
Expected<Handle> open_native(const std::wstring& path, const File::Options& options);
/// `path`: for handles whose kind alone is not enough (folders, links).
Expected<FileInfo> info_of(HANDLE handle);
Expected<FileInfo> info_of(const std::wstring& path, Links links);
/// The current path of an open file or folder.
Expected<std::wstring> path_of(HANDLE handle);
Status set_modified(const std::wstring& path, std::int64_t ns);
Status replace(const std::wstring& from, const std::wstring& to);
Status remove(const std::wstring& path);
Expected<std::uint64_t> free_bytes_of(const std::wstring& path);

/// Writes all bytes at `place` and advances it; ignored for pipes and similar.
Status write_all(HANDLE handle, std::span<const std::byte> bytes, std::uint64_t& place);

/// A security descriptor that restricts a new file or folder to this user, the system and the administrators. Freed by
/// LocalFree.
struct FreeLocalLater {
  void operator()(void* memory) const { LocalFree(memory); }
};
using OwnerOnly = std::unique_ptr<void, FreeLocalLater>;
OwnerOnly owner_only();
/// The last part of the user's security identifier, unique on this machine.
std::uint32_t user_number();

}  // namespace millrace::os

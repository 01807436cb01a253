// What the Windows sources of this folder share. No other file includes it.
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

/// Text of the program (UTF-8) and of the system (UTF-16). What is no text becomes U+FFFD.
std::wstring to_wide(std::string_view text);
std::string to_utf8(std::wstring_view text);

/// A path as the system's functions take it, beyond 260 characters, too.
std::wstring wide_path(const std::string& path);

/// The number of an error in the system's words, with the code that file.h names; io_error where it names none.
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

/// Whoever has the file open may read, write, rename and delete it, as on other systems.
inline constexpr DWORD kShareAll = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

/// Opens a file as File::open() does. Errors: those of file.h.
Expected<Handle> open_native(const std::wstring& path, const File::Options& options);
/// `path`: where the handle's kind alone does not say what it is (folders, links).
Expected<FileInfo> info_of(HANDLE handle);
Expected<FileInfo> info_of(const std::wstring& path, Links links);
/// The path that an open file or folder has now.
Expected<std::wstring> path_of(HANDLE handle);
Status set_modified(const std::wstring& path, std::int64_t ns);
Status replace(const std::wstring& from, const std::wstring& to);
Status remove(const std::wstring& path);
Expected<std::uint64_t> free_bytes_of(const std::wstring& path);

/// All bytes from `place` on, which moves behind them; pipes and the like take no place.
Status write_all(HANDLE handle, std::span<const std::byte> bytes, std::uint64_t& place);

/// A description of permissions in the system's own language that gives a new file or folder to this user, the system
/// and the administrators alone. Freed by LocalFree.
struct FreeLocalLater {
  void operator()(void* memory) const { LocalFree(memory); }
};
using OwnerOnly = std::unique_ptr<void, FreeLocalLater>;
OwnerOnly owner_only();
/// The last part of the user's security identifier: a number that no other user of this machine has.
std::uint32_t user_number();

}  // namespace millrace::os

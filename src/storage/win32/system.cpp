#include "storage/win32/system.h"

#include <windows.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "device/win32/backing.h"

namespace millrace::storage {
namespace {

constexpr std::uint64_t kLongestRead = std::uint64_t{1} << 30;  // ReadFile counts in 32 bits
constexpr std::size_t kLongPath = 248;                          // MAX_PATH less a short name

HANDLE native(SystemHandle handle) {
  return reinterpret_cast<HANDLE>(handle);  // NOLINT(performance-no-int-to-ptr): what a HANDLE is
}

}  // namespace

std::wstring wide_path(const std::string& path) {
  const int length = MultiByteToWideChar(CP_UTF8, 0, path.data(), static_cast<int>(path.size()), nullptr, 0);
  std::wstring name(static_cast<std::size_t>(length), L'\0');
  MultiByteToWideChar(CP_UTF8, 0, path.data(), static_cast<int>(path.size()), name.data(), length);
  const DWORD room = GetFullPathNameW(name.c_str(), 0, nullptr, nullptr);
  std::wstring full(room, L'\0');
  const DWORD written = GetFullPathNameW(name.c_str(), room, full.data(), nullptr);
  if (room == 0 || written == 0 || written >= room) return name;
  full.resize(written);
  if (full.size() < kLongPath || full.starts_with(L"\\\\")) return full;
  return L"\\\\?\\" + full;
}

std::string system_words(std::uint32_t code) {
  wchar_t* text = nullptr;
  const DWORD length =
      FormatMessageW(FORMAT_MESSAGE_ALLOCATE_BUFFER | FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS,
                     nullptr, code, 0, reinterpret_cast<wchar_t*>(&text), 0, nullptr);
  std::string words;
  if (length > 0) {
    const int bytes = WideCharToMultiByte(CP_UTF8, 0, text, static_cast<int>(length), nullptr, 0, nullptr, nullptr);
    words.resize(static_cast<std::size_t>(bytes));
    WideCharToMultiByte(CP_UTF8, 0, text, static_cast<int>(length), words.data(), bytes, nullptr, nullptr);
    LocalFree(text);
  }
  words.erase(words.find_last_not_of(" \r\n") + 1);
  std::replace(words.begin(), words.end(), '\n', ' ');
  std::erase(words, '\r');
  return words.empty() ? fmt::format("error {}", code) : fmt::format("{} (error {})", words, code);
}

std::int64_t failed_attempt(std::uint32_t code) {
  switch (code) {
    case ERROR_HANDLE_EOF:
      return 0;
    // What passes: too much is under way, or the thread that asked has ended.
    case ERROR_NO_SYSTEM_RESOURCES:
    case ERROR_WORKING_SET_QUOTA:
    case ERROR_NOT_ENOUGH_QUOTA:
      Sleep(1);
      return -EAGAIN;
    case ERROR_OPERATION_ABORTED:
      return -EAGAIN;
    default:
      return -static_cast<std::int64_t>(kFirstWin32Code + code);
  }
}

std::string attempt_cause(int code) {
  return code >= kFirstWin32Code ? system_words(static_cast<std::uint32_t>(code - kFirstWin32Code))
                                 : std::string(std::strerror(code));
}

Expected<ScopedEvent> ScopedEvent::make(bool resets_itself) {
  const HANDLE handle = CreateEventW(nullptr, resets_itself ? FALSE : TRUE, FALSE, nullptr);
  if (handle == nullptr) return error(Code::io_error, "cannot make an event: {}", system_words(GetLastError()));
  return ScopedEvent(handle);
}

ScopedEvent::~ScopedEvent() {
  if (handle_ != nullptr) CloseHandle(handle_);
}

void ScopedEvent::set() const { SetEvent(handle_); }

Expected<OverlappedFile> OverlappedFile::open_again(SystemHandle file, const std::string& path,
                                                    std::uint64_t alignment) {
  const DWORD flags = FILE_FLAG_OVERLAPPED | (alignment > 1 ? FILE_FLAG_NO_BUFFERING : 0);
  // The same file, whatever its path names by now.
  const HANDLE again =
      ReOpenFile(native(file), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, flags);
  if (again == INVALID_HANDLE_VALUE) {
    const DWORD code = GetLastError();
    return error(code == ERROR_INVALID_PARAMETER && alignment > 1 ? Code::unsupported : Code::io_error,
                 "cannot open {} for a reading thread: {}", path, system_words(code));
  }
  ScopedHandle handle(reinterpret_cast<SystemHandle>(again));
  MR_ASSIGN_OR_RETURN(ScopedEvent event, ScopedEvent::make(false));
  return OverlappedFile(std::move(handle), std::move(event), alignment);
}

std::int64_t OverlappedFile::read(std::uint64_t offset, std::uint64_t bytes, std::byte* destination) const {
  if ((offset | bytes | reinterpret_cast<std::uintptr_t>(destination)) % alignment_ != 0)
    return failed_attempt(ERROR_INVALID_PARAMETER);
  if (!device::back_memory(destination, bytes).ok()) return failed_attempt(ERROR_COMMITMENT_LIMIT);
  OVERLAPPED place{};
  place.Offset = static_cast<DWORD>(offset);
  place.OffsetHigh = static_cast<DWORD>(offset >> 32);
  place.hEvent = event_.get();
  const HANDLE file = native(handle_.get());
  if (ReadFile(file, destination, static_cast<DWORD>(std::min(bytes, kLongestRead)), nullptr, &place) == 0) {
    if (const DWORD code = GetLastError(); code != ERROR_IO_PENDING) return failed_attempt(code);
  }
  DWORD arrived = 0;
  if (GetOverlappedResult(file, &place, &arrived, TRUE) == 0) return failed_attempt(GetLastError());
  return arrived;
}

}  // namespace millrace::storage

#include "base/os/scratch_file.h"

#include <algorithm>
#include <atomic>

#include "base/os/win32/win32.h"

namespace millrace::os {

Expected<ScratchFile> ScratchFile::make(const std::string& folder) {
  static std::atomic<unsigned> count{0};
  for (int attempt = 0;; ++attempt) {
    const std::string path = fmt::format("{}/millrace-scratch-{:x}-{:x}", folder, GetCurrentProcessId(), count++);
    HANDLE const handle =
        CreateFileW(wide_path(path).c_str(), GENERIC_READ | GENERIC_WRITE | DELETE, kShareAll, nullptr, CREATE_NEW,
                    FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE, nullptr);
    if (handle != INVALID_HANDLE_VALUE) return ScratchFile(to_handle(handle));
    if (GetLastError() != ERROR_FILE_EXISTS || attempt == 1000) return last_error();
  }
}

ScratchFile::~ScratchFile() {
  if (handle_ != kNoHandle) CloseHandle(native(handle_));
}

Status ScratchFile::write(std::span<const std::byte> bytes) const {
  // UINT64_MAX means the end of the file; continuing after a partial write would need it again.
  for (constexpr std::size_t kPart = 1u << 30; !bytes.empty();) {
    const auto part = bytes.first(std::min(bytes.size(), kPart));
    std::uint64_t end = UINT64_MAX;
    MR_RETURN_IF_ERROR(write_all(native(handle_), part, end));
    bytes = bytes.subspan(part.size());
  }
  return {};
}

Status ScratchFile::flush_to_disk() const {
  if (FlushFileBuffers(native(handle_)) == 0) return last_error();
  // Opening a file without buffering makes Windows drop its cached pages.
  const OwnedHandle unbuffered(CreateFileW(wide_path(path()).c_str(), GENERIC_READ, kShareAll, nullptr, OPEN_EXISTING,
                                           FILE_FLAG_NO_BUFFERING, nullptr));
  return unbuffered.get() == INVALID_HANDLE_VALUE ? last_error() : Status();
}

std::string ScratchFile::path() const {
  const auto path = path_of(native(handle_));
  return path.ok() ? to_utf8(path.value()) : std::string();
}

}  // namespace millrace::os

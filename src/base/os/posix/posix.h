// Shared by the POSIX sources of this folder only.
#pragma once

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>

#include "base/os/file.h"
#include "base/status.h"

namespace millrace::os {

/// An error with errno's text, and the code by file.h's rules; io_error by default.
Status last_error();

FileInfo from_stat(const struct stat& found);
int flags_of(const File::Options& options);
int mode_of(const File::Options& options);
timespec to_timespec(std::int64_t ns);
/// Writes all bytes at the current position.
Status write_all(int handle, std::span<const std::byte> bytes);

/// Repeats the call while signals interrupt it; -1 with errno on failure.
template <typename Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

inline Status outcome(int result) { return result == 0 ? Status() : last_error(); }

inline std::uint64_t free_of(const struct statvfs& disk) {
  return static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
}

}  // namespace millrace::os

#include "base/os/posix/posix.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace millrace::os {

Status last_error() {
  const int number = errno;
  const bool missing = number == ENOENT || number == ENOTDIR;
  const bool full = number == ENOSPC || number == EDQUOT;
  const bool other = number == EEXIST || number == ELOOP;
  const Code code = missing                 ? Code::not_found
                    : other                 ? Code::invalid_argument
                    : full                  ? Code::out_of_budget
                    : number == EFBIG       ? Code::unsupported
                    : number == EWOULDBLOCK ? Code::unavailable
                                            : Code::io_error;
  return Status(code, std::strerror(number));
}

int flags_of(const File::Options& options) {
  int flags = O_CLOEXEC;
  flags |= options.access == File::Access::read ? O_RDONLY : options.access == File::Access::write ? O_WRONLY : O_RDWR;
  if (options.create != File::Create::never) flags |= O_CREAT;
  if (options.create == File::Create::always_new) flags |= O_EXCL;
  if (options.empty) flags |= O_TRUNC;
  if (options.append) flags |= O_APPEND;
  if (options.links == Links::stay) flags |= O_NOFOLLOW;
  if (!options.wait) flags |= O_NONBLOCK;
  if (options.direct) flags |= O_DIRECT;
  return flags;
}

int mode_of(const File::Options& options) { return options.owner_only ? 0600 : options.writable_by_all ? 0666 : 0644; }

Status write_all(int handle, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = retry([&] { return ::write(handle, bytes.data(), bytes.size()); });
    if (put < 0) return last_error();
    if (put == 0) return Status(Code::out_of_budget, "nothing could be written");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

timespec to_timespec(std::int64_t ns) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::int64_t seconds = ns / kSecond - (ns % kSecond < 0 ? 1 : 0);
  return {static_cast<time_t>(seconds), static_cast<long>(ns - seconds * kSecond)};
}

}  // namespace millrace::os

#include "residency/small_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/bytes.h"
#include "base/open_output.h"
#include "storage/file_set.h"

namespace millrace::residency {
namespace {

namespace fs = std::filesystem;

Status system_failure(const std::string& path, const char* doing, Code code = Code::io_error) {
  return error(code, "{}: cannot {}: {}", path, doing, std::strerror(errno));
}

Status write_all(int fd, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_failure(path, "write it");
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

/// A new file of ours alone; one that a process of this number left behind gives way.
storage::ScopedFd create_new(const std::string& path) {
  constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int fd = ::open(path.c_str(), flags, 0666);
  if (fd < 0 && errno == EEXIST && ::unlink(path.c_str()) == 0) fd = ::open(path.c_str(), flags, 0666);
  return storage::ScopedFd(fd);
}

}  // namespace

Expected<std::string> read_small_file(const std::string& path, std::uint64_t most_bytes) {
  // A named pipe without a writer would hold open() for ever.
  const storage::ScopedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.open()) return system_failure(path, "read it", errno == ENOENT ? Code::not_found : Code::io_error);
  constexpr int kPatienceMs = 5000;
  struct stat there {};
  pollfd pipe{fd.get(), POLLIN, 0};
  if (::fstat(fd.get(), &there) == 0 && S_ISFIFO(there.st_mode) && ::poll(&pipe, 1, kPatienceMs) == 0)
    return error(Code::io_error, "{}: is a pipe into which nobody writes; start its writer first", path);
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL, 0) & ~O_NONBLOCK);
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_failure(path, "read it");
    if (count == 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
    if (text.size() > most_bytes)
      return error(Code::invalid_argument, "{}: it is longer than {}; no file of this kind is", path,
                   format_bytes(most_bytes));
  }
}

Status write_small_file(const std::string& path, std::string_view text, Links links) {
  struct stat there {};
  const int looked = links == Links::follow ? ::stat(path.c_str(), &there) : ::lstat(path.c_str(), &there);
  const bool is_link = looked == 0 && S_ISLNK(there.st_mode);
  if (looked == 0 && !S_ISREG(there.st_mode) && !is_link) {
    MR_ASSIGN_OR_RETURN(const int pipe, open_output(path, O_NOFOLLOW));
    const storage::ScopedFd fd(pipe);
    return write_all(fd.get(), path, text);
  }
  std::string target = path;
  if (looked == 0 && !is_link) {
    std::error_code failure;
    const fs::path real = fs::canonical(path, failure);
    if (!failure && links == Links::follow) target = real.string();
  }
  const std::string fresh = fmt::format("{}.{}.new", target, getpid());
  Status status;
  {
    const storage::ScopedFd fd = create_new(fresh);
    if (!fd.open()) return system_failure(path, "write it");
    status = write_all(fd.get(), path, text);
    if (status.ok() && looked == 0 && !is_link) ::fchmod(fd.get(), there.st_mode & 0777);
    if (status.ok() && ::fsync(fd.get()) != 0) status = system_failure(path, "write it");
  }
  if (status.ok() && std::rename(fresh.c_str(), target.c_str()) != 0) status = system_failure(path, "put it in place");
  if (!status.ok()) ::unlink(fresh.c_str());
  return status;
}

}  // namespace millrace::residency

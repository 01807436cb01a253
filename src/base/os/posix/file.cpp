#include "base/os/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/os/posix/posix.h"

namespace millrace::os {
namespace {

/// Makes reads and writes blocking again after a non-blocking open.
void wait_from_now(int handle) { (void)::fcntl(handle, F_SETFL, ::fcntl(handle, F_GETFL, 0) & ~O_NONBLOCK); }

}  // namespace

Expected<File> File::open(const std::string& path, const Options& options) {
  const int handle = ::open(path.c_str(), flags_of(options), mode_of(options));
  if (handle < 0 && errno == ENXIO) return Status(Code::unavailable, "it is a pipe that nobody reads");
  if (handle < 0) return last_error();
  if (!options.wait && options.access == Access::write) wait_from_now(handle);
  return File(handle);
}

Status File::close() {
  const int handle = std::exchange(handle_, -1);
  return handle < 0 ? Status() : outcome(::close(handle));
}

Expected<FileInfo> File::info() const {
  struct stat found {};
  if (::fstat(handle_, &found) != 0) return last_error();
  return from_stat(found);
}

Status File::wait_for_data(std::chrono::milliseconds patience) const {
  struct stat found {};
  pollfd pipe{handle_, POLLIN, 0};
  const bool is_pipe = ::fstat(handle_, &found) == 0 && S_ISFIFO(found.st_mode);
  if (is_pipe && retry([&] { return ::poll(&pipe, 1, static_cast<int>(patience.count())); }) == 0)
    return Status(Code::unavailable, "nobody writes into this pipe");
  wait_from_now(handle_);
  return {};
}

Expected<std::size_t> File::read(std::span<std::byte> out) const {
  const ssize_t got = retry([&] { return ::read(handle_, out.data(), out.size()); });
  if (got < 0) return last_error();
  return static_cast<std::size_t>(got);
}

Expected<std::size_t> File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  const ssize_t got = retry([&] { return ::pread(handle_, out.data(), out.size(), static_cast<off_t>(offset)); });
  if (got < 0) return last_error();
  return static_cast<std::size_t>(got);
}

Status File::write(std::span<const std::byte> bytes) const { return write_all(handle_, bytes); }

Status File::write_at(std::uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t put =
        retry([&] { return ::pwrite(handle_, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (put < 0) return last_error();
    if (put == 0) return Status(Code::out_of_budget, "nothing could be written");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return {};
}

Status File::resize(std::uint64_t bytes) const { return outcome(::ftruncate(handle_, static_cast<off_t>(bytes))); }

Status File::reserve(std::uint64_t bytes) const {
  if (bytes == 0) return {};
  if (retry([&] { return ::fallocate(handle_, 0, 0, static_cast<off_t>(bytes)); }) == 0) return {};
  const Status status = last_error();
  return status.code() == Code::out_of_budget ? status : Status(Code::unsupported, status.message());
}

Status File::sync() const { return outcome(::fsync(handle_)); }
Status File::sync_data() const { return outcome(::fdatasync(handle_)); }

Expected<std::uint64_t> File::free_bytes() const {
  struct statvfs disk {};
  if (::fstatvfs(handle_, &disk) != 0) return last_error();
  return free_of(disk);
}

Status File::lock(bool wait) const {
  return outcome(retry([&] { return ::flock(handle_, LOCK_EX | (wait ? 0 : LOCK_NB)); }));
}

Status File::set_modified(std::int64_t ns) const {
  const timespec times[2] = {to_timespec(ns), to_timespec(ns)};
  return outcome(::futimens(handle_, times));
}

Status File::set_permissions_like(const std::string& like) const {
  struct stat found {};
  if (::stat(like.c_str(), &found) != 0) return last_error();
  return outcome(::fchmod(handle_, found.st_mode & 0777));
}

Status File::set_owner_only() const { return outcome(::fchmod(handle_, 0600)); }

Status replace_file(const std::string& from, const std::string& to) {
  return outcome(std::rename(from.c_str(), to.c_str()));
}

Status sync_folder(const std::string& path) {
  const int handle = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle < 0) return last_error();
  Status status = outcome(::fsync(handle));
  (void)::close(handle);
  return status;
}

Status remove_file(const std::string& path) { return outcome(::unlink(path.c_str())); }

Expected<std::uint64_t> free_bytes(const std::string& path) {
  struct statvfs disk {};
  if (::statvfs(path.c_str(), &disk) != 0) return last_error();
  return free_of(disk);
}

}  // namespace millrace::os

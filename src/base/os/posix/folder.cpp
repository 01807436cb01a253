#include "base/os/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <memory>

#include "base/os/posix/posix.h"

namespace millrace::os {

Folder::~Folder() {
  if (handle_ >= 0) ::close(handle_);
}

Expected<Folder> Folder::open(const std::string& path) {
  const int handle = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle < 0) return last_error();
  return Folder(handle);
}

Expected<bool> Folder::is_private() const {
  struct stat found {};
  if (::fstat(handle_, &found) != 0) return last_error();
  const bool ours = found.st_uid == ::geteuid() || found.st_uid == 0 || ::geteuid() == 0;
  return ours && (found.st_mode & 022) == 0;
}

Status Folder::check_writable() const { return outcome(::faccessat(handle_, ".", W_OK | X_OK, AT_EACCESS)); }

Expected<File> Folder::open_file(const std::string& name, const File::Options& options) const {
  const int handle = ::openat(handle_, name.c_str(), flags_of(options) | O_NOCTTY, mode_of(options));
  if (handle < 0) return last_error();
  return File(handle);
}

Expected<FileInfo> Folder::info(const std::string& name) const {
  struct stat found {};
  if (::fstatat(handle_, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) return last_error();
  return from_stat(found);
}

Status Folder::for_each(const std::function<void(const std::string& name)>& take) const {
  const int handle = ::openat(handle_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> open(handle >= 0 ? ::fdopendir(handle) : nullptr, ::closedir);
  if (open == nullptr) return last_error();
  while (const dirent* const entry = ::readdir(open.get()))  // NOLINT(concurrency-mt-unsafe): this thread's own DIR
    take(entry->d_name);
  return {};
}

Status Folder::set_modified(const std::string& name, std::int64_t ns) const {
  const timespec times[2] = {to_timespec(ns), to_timespec(ns)};
  return outcome(::utimensat(handle_, name.c_str(), times, AT_SYMLINK_NOFOLLOW));
}

Status Folder::replace(const std::string& from, const std::string& to) const {
  return outcome(::renameat(handle_, from.c_str(), handle_, to.c_str()));
}

Status Folder::remove(const std::string& name) const { return outcome(::unlinkat(handle_, name.c_str(), 0)); }

Expected<std::uint64_t> Folder::free_bytes() const {
  struct statvfs disk {};
  if (::fstatvfs(handle_, &disk) != 0) return last_error();
  return free_of(disk);
}

Status make_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return last_error();
}

Status link_file(const std::string& target, const std::string& link) {
  return outcome(::symlink(target.c_str(), link.c_str()));
}

}  // namespace millrace::os

#include "app/store/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/bytes.h"
#include "modelfile/file_io.h"

namespace millrace::store {

namespace fs = std::filesystem;

Status system_error(const std::string& path, std::string_view doing) {
  const int number = errno;
  if (number == ENOSPC || number == EDQUOT || number == EFBIG)
    return error(Code::out_of_budget,
                 "{}: cannot {}: the disk is full (or a limit on files is); make room, then try again", path, doing);
  return error(Code::io_error, "{}: cannot {}: {}", path, doing, std::strerror(number));
}

Status make_folders(const std::string& path) {
  std::error_code failure;
  fs::create_directories(path, failure);
  if (!failure) return {};
  return error(Code::io_error, "{}: cannot make this folder: {}; set MILLRACE_MODELS to a folder you may write", path,
               failure.message());
}

Status sync_folder(const std::string& path) {
  const storage::ScopedFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.open() || fsync(fd.get()) != 0) return system_error(path, "sync this folder");
  return {};
}

Status move_file(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) return system_error(to, "put the file in place");
  return sync_folder(fs::path(to).parent_path());
}

Status write_whole(const std::string& path, std::string_view text) {
  const std::string fresh = fmt::format("{}.{}.new", path, getpid());
  {
    MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::create(fresh));
    Status status = file.write_at(0, std::as_bytes(std::span(text.data(), text.size())));
    if (status.ok()) status = file.sync();
    if (!status.ok()) {
      std::remove(fresh.c_str());
      return status;
    }
  }
  return move_file(fresh, path);
}

Expected<std::string> read_whole(const std::string& path, std::uint64_t most_bytes) {
  MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::open_read(path));
  MR_ASSIGN_OR_RETURN(const std::uint64_t bytes, file.size());
  if (bytes > most_bytes) return error(Code::corrupt, "{}: it is larger than {}", path, format_bytes(most_bytes));
  std::string text(bytes, '\0');
  MR_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  return text;
}

Expected<std::uint64_t> free_bytes(const std::string& path) {
  struct statvfs information = {};
  if (statvfs(path.c_str(), &information) != 0) return system_error(path, "ask how much of the disk is free");
  return static_cast<std::uint64_t>(information.f_bavail) * information.f_frsize;
}

Expected<FolderLock> FolderLock::take(const std::string& folder, bool wait) {
  MR_RETURN_IF_ERROR(make_folders(folder));
  const std::string path = folder + "/.lock";
  storage::ScopedFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd.open()) return system_error(path, "open it");
  int result = 0;
  do {
    result = flock(fd.get(), LOCK_EX | (wait ? 0 : LOCK_NB));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK)
    return error(Code::io_error, "{}: another process works here; wait for it", folder);
  if (result != 0) return system_error(path, "lock it");
  return FolderLock(std::move(fd));
}

}  // namespace millrace::store

#include "base/os/file_info.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <filesystem>

#include "base/os/posix/posix.h"

namespace millrace::os {

FileInfo from_stat(const struct stat& found) {
  constexpr std::uint64_t kBlock = 512;
  FileInfo info;
  info.kind = S_ISREG(found.st_mode)   ? FileKind::regular
              : S_ISDIR(found.st_mode) ? FileKind::folder
              : S_ISLNK(found.st_mode) ? FileKind::link
                                       : FileKind::other;
  info.bytes = static_cast<std::uint64_t>(found.st_size);
  info.disk_bytes = static_cast<std::uint64_t>(found.st_blocks) * kBlock;
  info.modified_ns = std::int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec;
  info.volume = found.st_dev;
  info.number = found.st_ino;
  return info;
}

Expected<FileInfo> file_info(const std::string& path, Links links) {
  struct stat found {};
  if ((links == Links::follow ? ::stat(path.c_str(), &found) : ::lstat(path.c_str(), &found)) != 0) return last_error();
  return from_stat(found);
}

std::string volume_name(std::uint64_t volume) {
  const auto device = static_cast<dev_t>(volume);
  const std::string number = fmt::format("{}:{}", major(device), minor(device));
  std::error_code failure;
  const std::filesystem::path link = std::filesystem::read_symlink("/sys/dev/block/" + number, failure);
  return failure ? "device " + number : link.filename().string();
}

}  // namespace millrace::os

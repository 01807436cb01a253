#include "storage/file_set.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

namespace millrace::storage {
namespace {

constexpr std::uint64_t kMinAlignment = 512;

/// The alignment that statx reports; 0: unknown (before Linux 6.1, or not reported by the file system).
Expected<std::uint64_t> alignment_from_statx(int fd, const std::string& path) {
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0 || (info.stx_mask & STATX_DIOALIGN) == 0) {
    return std::uint64_t{0};
  }
  if (info.stx_dio_offset_align == 0 || info.stx_dio_mem_align == 0) {
    return error(Code::unsupported, "the file system of {} does not support O_DIRECT on this file", path);
  }
  return std::max<std::uint64_t>({info.stx_dio_offset_align, info.stx_dio_mem_align, kMinAlignment});
#else
  (void)fd, (void)path;
  return std::uint64_t{0};
#endif
}

/// Reads one block at the offset of one block, with a buffer aligned to exactly one block.
bool direct_read_works(int fd, std::uint64_t alignment) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const std::unique_ptr<void, Free> memory(std::aligned_alloc(2 * kMaxAlignment, 2 * kMaxAlignment));
  if (memory == nullptr) return false;
  std::byte* block = static_cast<std::byte*>(memory.get()) + (alignment < kMaxAlignment ? alignment : 0);
  ssize_t result = 0;
  do {
    result = pread(fd, block, alignment, static_cast<off_t>(alignment));
  } while (result < 0 && errno == EINTR);
  return result >= 0;
}

bool lives_in_memory(int fd) {
  struct statfs info {};
  return fstatfs(fd, &info) == 0 && (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

int number_of(const ScopedHandle& handle) { return static_cast<int>(handle.get()); }

/// The time of the last change of its bytes (mtime). ctime also changes when the file is renamed or linked, which is
/// harmless.
FileIdentity identity_of(const struct stat& info) {
  return {.bytes = static_cast<std::uint64_t>(info.st_size),
          .volume = info.st_dev,
          .number = {info.st_ino, 0},
          .modified_ns = static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec};
}

}  // namespace

ScopedHandle::~ScopedHandle() {
  if (open()) close(static_cast<int>(handle_));
}

Expected<std::uint64_t> direct_alignment(SystemHandle handle, const std::string& path) {
  const int fd = static_cast<int>(handle);
  // Since Linux 6.6, tmpfs accepts O_DIRECT but still copies from the page cache, so there is nothing to bypass.
  if (lives_in_memory(fd))
    return error(Code::unsupported, "{} is in a memory file system, where O_DIRECT has no effect", path);
  MR_ASSIGN_OR_RETURN(const std::uint64_t told, alignment_from_statx(fd, path));
  if (told > kMaxAlignment || !std::has_single_bit(std::max<std::uint64_t>(told, 1))) {
    return error(Code::unsupported, "O_DIRECT on {} asks for blocks of {} bytes, more than the {} supported", path,
                 told, kMaxAlignment);
  }
  for (std::uint64_t alignment = told != 0 ? told : kMinAlignment; alignment <= kMaxAlignment; alignment *= 2) {
    if (direct_read_works(fd, alignment)) return alignment;
  }
  return error(Code::unsupported, "the file system of {} refuses O_DIRECT reads ({})", path, std::strerror(errno));
}

Expected<FileSet::File> FileSet::open_one(const std::string& path, Access access) {
  File file;
  file.path = path;
  struct stat info {};
  // Checked before opening, because opening a pipe would block, and O_DIRECT gives odd errors for directories.
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return error(Code::invalid_argument, "{} is not a regular file; name a model file", path);
  }
  const int flags = O_RDONLY | O_CLOEXEC | (access == Access::direct ? O_DIRECT : 0);
  file.handle = ScopedHandle(::open(path.c_str(), flags));
  if (!file.handle.open()) {
    if (errno == ENOENT || errno == ENOTDIR) return error(Code::not_found, "{}: no such file; check the path", path);
    if (errno == EINVAL && access == Access::direct) {
      return error(Code::unsupported, "the file system of {} refuses to open files with O_DIRECT", path);
    }
    return error(Code::io_error, "cannot open {}: {}", path, std::strerror(errno));
  }
  if (fstat(number_of(file.handle), &info) != 0)
    return error(Code::io_error, "cannot stat {}: {}", path, std::strerror(errno));
  file.identity = identity_of(info);
  return file;
}

/// "vda" for "254:1", its first partition; the device's own name if it is not a partition, or unknown.
std::string FileSet::disk_of(int file) const {
  std::string device = this->device(file);
  std::error_code failed;
  const std::filesystem::path place = std::filesystem::canonical("/sys/dev/block/" + device, failed);
  if (failed) return device;
  const bool partition = std::filesystem::exists(place / "partition", failed);
  return (partition ? place.parent_path() : place).filename().string();
}

Status FileSet::health() const {
  for (const File& file : files_) {
    struct stat now {};
    if (fstat(number_of(file.handle), &now) != 0) {
      return error(Code::io_error, "{} can no longer be reached ({}): start again", file.path, std::strerror(errno));
    }
    if (identity_of(now) != file.identity)
      return error(Code::io_error, "{} changed while it was being read: start again", file.path);
  }
  return {};
}

std::string FileSet::device(int file) const {
  const std::uint64_t of = files_[file].identity.volume;
  return fmt::format("{}:{}", major(of), minor(of));
}

}  // namespace millrace::storage

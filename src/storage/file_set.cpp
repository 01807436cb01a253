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

/// What statx says, 0 if it cannot tell (before Linux 6.1, or the file system does not report it).
Expected<std::uint64_t> alignment_from_statx(int fd, const std::string& path) {
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0 || (info.stx_mask & STATX_DIOALIGN) == 0) {
    return std::uint64_t{0};
  }
  if (info.stx_dio_offset_align == 0 || info.stx_dio_mem_align == 0) {
    return error(Code::unsupported, "the file system of {} says that it cannot do O_DIRECT on this file", path);
  }
  return std::max<std::uint64_t>({info.stx_dio_offset_align, info.stx_dio_mem_align, kMinAlignment});
#else
  (void)fd, (void)path;
  return std::uint64_t{0};
#endif
}

/// Reads one block at one block's offset, with a buffer aligned to a block and no more.
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

}  // namespace

ScopedFd::~ScopedFd() {
  if (fd_ >= 0) close(fd_);
}

Expected<std::uint64_t> direct_alignment(int fd, const std::string& path) {
  // Since Linux 6.6 tmpfs accepts O_DIRECT and copies from the page cache as ever: there is nothing to bypass.
  if (lives_in_memory(fd))
    return error(Code::unsupported, "{} lies in a memory file system, O_DIRECT is idle there", path);
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
  // Looked at before it is opened: opening a pipe would wait, and O_DIRECT gives odd errors for a directory.
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return error(Code::invalid_argument, "{} is not a regular file; name a model file", path);
  }
  const int flags = O_RDONLY | O_CLOEXEC | (access == Access::direct ? O_DIRECT : 0);
  file.fd = ScopedFd(::open(path.c_str(), flags));
  if (!file.fd.open()) {
    if (errno == ENOENT || errno == ENOTDIR) return error(Code::not_found, "{}: no such file; check the path", path);
    if (errno == EINVAL && access == Access::direct) {
      return error(Code::unsupported, "the file system of {} refuses to open files with O_DIRECT", path);
    }
    return error(Code::io_error, "cannot open {}: {}", path, std::strerror(errno));
  }
  if (fstat(file.fd.get(), &info) != 0) return error(Code::io_error, "cannot stat {}: {}", path, std::strerror(errno));
  file.bytes = static_cast<std::uint64_t>(info.st_size);
  file.inode = info.st_ino;
  file.device = info.st_dev;
  file.modified = info.st_mtim;
  return file;
}

Expected<FileSet> FileSet::open(const std::vector<std::string>& paths, Access access) {
  if (paths.empty()) return error(Code::invalid_argument, "no file to read was named");
  FileSet set;
  for (const std::string& path : paths) {
    MR_ASSIGN_OR_RETURN(File file, open_one(path, access));
    if (access == Access::direct) {
      MR_ASSIGN_OR_RETURN(const std::uint64_t alignment, direct_alignment(file.fd.get(), path));
      set.alignment_ = std::max(set.alignment_, alignment);
    }
    set.files_.push_back(std::move(file));
  }
  set.number_disks();
  return set;
}

/// "vda" for "254:1", the first partition of it; the device's own name where it is no partition, or not known.
static std::string disk_of(const std::string& device) {
  std::error_code failed;
  const std::filesystem::path place = std::filesystem::canonical("/sys/dev/block/" + device, failed);
  if (failed) return device;
  const bool partition = std::filesystem::exists(place / "partition", failed);
  return (partition ? place.parent_path() : place).filename().string();
}

void FileSet::number_disks() {
  std::vector<std::string> names;
  for (int i = 0; i < count(); ++i) {
    const std::string name = disk_of(device(i));
    const auto known = std::find(names.begin(), names.end(), name);
    files_[static_cast<std::size_t>(i)].disk = static_cast<int>(known - names.begin());
    if (known == names.end()) names.push_back(name);
  }
  disks_ = static_cast<int>(names.size());
}

std::uint64_t FileSet::total_bytes() const {
  std::uint64_t total = 0;
  for (const File& file : files_) total += file.bytes;
  return total;
}

Status FileSet::health() const {
  for (const File& file : files_) {
    struct stat now {};
    if (fstat(file.fd.get(), &now) != 0) {
      return error(Code::io_error, "{} can no longer be reached ({}): start again", file.path, std::strerror(errno));
    }
    // Not the inode's change time: that one moves when the file is renamed or linked, which harms nobody.
    const bool same = static_cast<std::uint64_t>(now.st_size) == file.bytes && now.st_ino == file.inode &&
                      now.st_dev == file.device && now.st_mtim.tv_sec == file.modified.tv_sec &&
                      now.st_mtim.tv_nsec == file.modified.tv_nsec;
    if (!same) return error(Code::io_error, "{} changed while it was being read: start again", file.path);
  }
  return {};
}

std::string FileSet::device(int file) const {
  const auto& of = files_[file];
  return fmt::format("{}:{}", major(of.device), minor(of.device));
}

Status FileSet::check_range(const Read& read) const {
  if (read.file < 0 || read.file >= count()) {
    return error(Code::internal, "a read names file {} of {}", read.file, count());
  }
  const std::uint64_t size = bytes(read.file);
  if (read.offset > size || read.bytes > size - read.offset) {
    return ends_early(path(read.file), size, read.offset, read.bytes);
  }
  return {};
}

Status FileSet::check(const Read& read) const {
  MR_RETURN_IF_ERROR(check_range(read));
  if ((reinterpret_cast<std::uintptr_t>(read.destination) - read.offset) % kMaxAlignment != 0) {
    return error(Code::internal, "a read's destination is not congruent to its file offset modulo {}", kMaxAlignment);
  }
  return {};
}

Status ends_early(const std::string& path, std::uint64_t file_bytes, std::uint64_t offset, std::uint64_t bytes) {
  return error(Code::io_error, "{}: the file ends at byte {}, {} bytes from {} were wanted: truncated? Get it again",
               path, file_bytes, bytes, offset);
}

}  // namespace millrace::storage

#include "storage/file_set.h"

#include <algorithm>

namespace millrace::storage {

Expected<FileSet> FileSet::open(const std::vector<std::string>& paths, Access access) {
  if (paths.empty()) return error(Code::invalid_argument, "no file to read was named");
  FileSet set;
  for (const std::string& path : paths) {
    MR_ASSIGN_OR_RETURN(File file, open_one(path, access));
    if (access == Access::direct) {
      MR_ASSIGN_OR_RETURN(const std::uint64_t alignment, direct_alignment(file.handle.get(), path));
      set.alignment_ = std::max(set.alignment_, alignment);
    }
    set.files_.push_back(std::move(file));
  }
  set.number_disks();
  return set;
}

void FileSet::number_disks() {
  std::vector<std::string> names;
  for (int i = 0; i < count(); ++i) {
    const std::string name = disk_of(i);
    const auto known = std::find(names.begin(), names.end(), name);
    files_[static_cast<std::size_t>(i)].disk = static_cast<int>(known - names.begin());
    if (known == names.end()) names.push_back(name);
  }
  disks_ = static_cast<int>(names.size());
}

std::uint64_t FileSet::total_bytes() const {
  std::uint64_t total = 0;
  for (const File& file : files_) total += file.identity.bytes;
  return total;
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
